// A zip archive's central directory, read from the end of the file. For zip_reader.cpp.
#pragma once

#include <string>
#include <vector>

#include "holdfast/base/crc32.h"
#include "holdfast/env/source_sink.h"

namespace holdfast::zip {

struct DirectoryEntry {
  std::string name{};
  int64_t header_offset = 0;
  int64_t size = 0;         // unpacked
  int64_t packed_size = 0;  // in the file: the same, unless it is compressed
  Crc32 crc = 0;
  uint16_t flags = 0;
  uint16_t method = 0;
};

struct Directory {
  int64_t offset = 0;  // where it begins, behind all records
  std::vector<DirectoryEntry> entries{};
};

// In the directory's own order. Entries are not encrypted and have harmless names; their
// bytes in the file lie before the directory. Compressed ones are among them.
Result<Directory> read_directory(const Source& source);

}  // namespace holdfast::zip
