// Reads zip archives as torch and NumPy write them: records stored as they are, so that
// any range of a record is a range of the file.
//
// Refused: what is compressed, encrypted or spread over several files (kUnsupported);
// directories and headers that contradict each other or the file's size, records that
// share bytes, one name twice, names that lead out of the archive, and a comment, in which
// other tools could see another archive (kCorrupt).
// Everything is checked when the archive is opened, but for the records' bytes.
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
  int64_t offset = 0;  // of its first byte in the file
  int64_t size = 0;
  Crc32 crc = 0;
};

// The names in an archive, also of compressed records, in the directory's own order.
Result<std::vector<std::string>> list_zip(const Source& source);

// Immutable; safe from several threads.
class ZipArchive {
 public:
  ZipArchive(ZipArchive&&) = default;
  ZipArchive& operator=(ZipArchive&&) = default;
  // Reads the directory and each record's header, never the records.
  static Result<ZipArchive> open(std::shared_ptr<const Source> source);

  const Source& source() const { return *source_; }
  // In order of offset.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  // By name, whatever the case of its ASCII letters: so torch finds them.
  const ZipEntry* find(std::string_view name) const;
  // The name that stands first in the directory; empty if there is none.
  const std::string& first_listed() const { return first_listed_; }

  // A whole record, its CRC checked. kCorrupt if it is longer than `limit`.
  Result<Bytes> read(const ZipEntry& entry, int64_t limit) const;
  // Checks the CRC of a record of any size, in bounded memory. A CRC of 0 means that the
  // writer left it out (torch can be told to) and is not checked.
  Result<void> verify(const ZipEntry& entry) const;

 private:
  ZipArchive(std::shared_ptr<const Source> source, std::vector<ZipEntry> entries,
             std::string first_listed);
  Result<void> check_crc(const ZipEntry& entry, Crc32 seen) const;

  // Shared with the contents that are made of it.
  std::shared_ptr<const Source> source_;
  std::vector<ZipEntry> entries_;
  std::string first_listed_;
  std::unordered_map<std::string, size_t> by_name_;  // in lower case
};

}  // namespace holdfast
