// Keeps the CRCs of a zip archive right while its records are patched.
#pragma once

#include <map>

#include "holdfast/archive/zip_reader.h"
#include "holdfast/contents/file_edit.h"

namespace holdfast {

// Collects what is XORed to records that are stored without compression, and then changes
// their CRCs. A CRC of 0 means that the writer left it out, and it stays so.
class ZipCrcEdit {
 public:
  // `archive` is the archive as it is before the patch. It begins at byte `begin` of the
  // file. It and `edit` must outlive this.
  ZipCrcEdit(const ZipArchive& archive, FileEdit& edit, int64_t begin = 0)
      : archive_(archive), edit_(edit), begin_(begin) {}

  // Called for each mask that is XORed to bytes of the file.
  void add(int64_t offset, ByteView mask);
  // Changes the CRCs of all records that were changed, wherever they are in the file.
  Result<void> write() const;

 private:
  const ZipArchive& archive_;
  FileEdit& edit_;
  const int64_t begin_;
  // What changes in the CRC of a record, by its number in the archive.
  std::map<size_t, Crc32> changes_;
};

// The number of the stored record that has this byte of the file, or the number of all
// records if none has it.
size_t record_at(const ZipArchive& archive, int64_t offset);

}  // namespace holdfast
