// Reads the central directory of a zip archive from the end of the file. For
// zip_reader.cpp.
#pragma once

#include <string>
#include <vector>

#include "holdfast/base/crc32.h"
#include "holdfast/env/source_sink.h"

namespace holdfast::zip {

struct DirectoryEntry {
  std::string name{};
  // The offsets of its own bytes in the directory, and of its local header.
  int64_t listed_offset = 0;
  int64_t header_offset = 0;
  int64_t size = 0;         // before compression
  int64_t packed_size = 0;  // in the file; the same unless the entry is compressed
  Crc32 crc = 0;
  uint16_t flags = 0;
  uint16_t method = 0;
};

struct Directory {
  // The directory begins at this byte of the file, after all records.
  int64_t offset = 0;
  std::vector<DirectoryEntry> entries{};
};

// Returns the entries in the order of the directory. Entries are not encrypted and have
// safe names, and their bytes in the file lie before the directory. Entries may be
// compressed.
Result<Directory> read_directory(const Source& source);

}  // namespace holdfast::zip
