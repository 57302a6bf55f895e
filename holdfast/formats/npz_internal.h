// An opened .npz archive. For npz*.cpp.
#pragma once

#include <map>
#include <vector>

#include "holdfast/archive/zip_reader.h"
#include "holdfast/contents/swapping_source.h"
#include "holdfast/formats/npy.h"
#include "holdfast/formats/npz.h"

namespace holdfast::npz {

inline constexpr ZipOptions kZipOptions{.ignore_case = false, .deflated = true};
inline constexpr std::string_view kArraySuffix = ".npy";

struct Array {
  size_t record = 0;  // of the archive
  NpyHeader header{};
  HolderId holder = 0;  // 0 is the file itself
};

struct Opened {
  ZipArchive archive;
  Contents contents;
  std::vector<Array> arrays;  // one for each tensor
};

Result<Opened> open_archive(std::shared_ptr<const Source> source);

// The bytes of one big-endian number.
int64_t width_of(Dtype dtype);

// A mask as the file has it, for an array with this header.
Bytes stored_mask(const NpyHeader& header, Dtype dtype, ByteView mask);

}  // namespace holdfast::npz
