// Replaces records of an archive by new ones behind all others, for a patch in place.
#pragma once

#include <span>

#include "holdfast/archive/zip_reader.h"

namespace holdfast {

// The new bytes of a deflated record. Its decoded size stays the same.
struct ReplacedRecord {
  const ZipEntry* entry = nullptr;
  Bytes packed{};
  Crc32 crc = 0;
};

// The bytes from archive.directory_offset() to the end of the new file: the new records,
// the directory, and the records behind it. `edited` is the file as far as it is patched
// already; the other entries of the directory are taken from it. The old bytes of a
// replaced record stay where they are, and nothing refers to them. Fails with
// kUnsupported for records of 4 GiB or more.
Result<Bytes> make_zip_tail(const Source& edited, const ZipArchive& archive,
                            std::span<const ReplacedRecord> records);

}  // namespace holdfast
