// Reads zip archives as torch and NumPy write them: records are stored without
// compression, so that any range of a record is a range of the file.
//
// Fails with kUnsupported if a record is compressed or encrypted, and if the archive is
// spread over several files. Fails with kCorrupt if directory and headers contradict
// each other or the size of the file, if records share bytes, if a name is there twice
// or leads out of the archive, and if there is a comment, in which other tools could
// see another archive. All of this is checked when the archive is opened. The bytes of
// the records are checked later.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holdfast/base/crc32.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {

struct ZipEntry {
  std::string name{};
  // The offset of its first byte in the file.
  int64_t offset = 0;
  int64_t size = 0;
  Crc32 crc = 0;
};

// The names of all records in an archive, also of compressed ones, in the order of the
// directory.
Result<std::vector<std::string>> list_zip(const Source& source);

// An opened archive. It never changes, and is safe from several threads.
class ZipArchive {
 public:
  ZipArchive(ZipArchive&&) = default;
  ZipArchive& operator=(ZipArchive&&) = default;
  // Reads the directory and the header of each record, but not the records.
  static Result<ZipArchive> open(std::shared_ptr<const Source> source);

  const Source& source() const { return *source_; }
  // All records in order of offset.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  // Finds a record by name. The case of ASCII letters does not matter, as in torch.
  const ZipEntry* find(std::string_view name) const;
  // The first name in the directory. Empty if the directory is empty.
  const std::string& first_listed() const { return first_listed_; }

  // Reads a whole record and checks its CRC. Fails with kCorrupt if it is longer than
  // `limit`.
  Result<Bytes> read(const ZipEntry& entry, int64_t limit) const;
  // Checks the CRC of a record of any size, in bounded memory. A CRC of 0 means that
  // the writer left it out (torch can do that); then nothing is checked.
  Result<void> verify(const ZipEntry& entry) const;

 private:
  ZipArchive(std::shared_ptr<const Source> source, std::vector<ZipEntry> entries,
             std::string first_listed);
  Result<void> check_crc(const ZipEntry& entry, Crc32 seen) const;

  // Shared with the contents that are made from this archive.
  std::shared_ptr<const Source> source_;
  std::vector<ZipEntry> entries_;
  std::string first_listed_;
  // Records by their names in lower case.
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace holdfast
