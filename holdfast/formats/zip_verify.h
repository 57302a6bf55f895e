// Finds all damage of a zip archive.
#pragma once

#include "holdfast/archive/zip_reader.h"
#include "holdfast/contents/contents.h"

namespace holdfast {

// Reads every record and compares its CRC, in bounded memory. `contents` says which
// tensors are in a record; it may be null. Their holders must be the file itself, or
// records of it whose sources have the names that ZipArchive::open_record() gives.
Result<FormatReport> verify_zip(const ZipArchive& archive, const Contents* contents,
                                const Progress& progress);

}  // namespace holdfast
