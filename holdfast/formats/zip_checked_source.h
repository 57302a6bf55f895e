// A zip file as a Source that computes the CRC of each record while it is read
// (checked_source.h).
#pragma once

#include <memory>
#include <span>

#include "holdfast/archive/zip_reader.h"
#include "holdfast/contents/checked_source.h"

namespace holdfast {

// `entries` are all entries of the archive that `inner` reads, in order of offset. An
// entry without a CRC is not checked. (torch can be told to write no CRCs.)
std::shared_ptr<const CheckedSource> make_zip_checked_source(
    std::shared_ptr<const Source> inner, std::span<const ZipEntry> entries);

}  // namespace holdfast
