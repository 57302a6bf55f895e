#include "holdfast/shard/zstd.h"

#include <zstd.h>

#include <algorithm>

namespace holdfast {
namespace {

// Bytes after the last whole element keep their place at the end.
void sort_into_planes(ByteView from, size_t width, std::byte* to) {
  const size_t count = from.size() / width;
  for (size_t plane = 0; plane < width; ++plane) {
    for (size_t i = 0; i < count; ++i) to[plane * count + i] = from[i * width + plane];
  }
  std::copy(from.begin() + static_cast<std::ptrdiff_t>(count * width), from.end(),
            to + count * width);
}

void restore_from_planes(ByteView from, size_t width, ByteSpan to) {
  const size_t count = to.size() / width;
  for (size_t plane = 0; plane < width; ++plane) {
    for (size_t i = 0; i < count; ++i) to[i * width + plane] = from[plane * count + i];
  }
  std::copy(from.begin() + static_cast<std::ptrdiff_t>(count * width), from.end(),
            to.begin() + static_cast<std::ptrdiff_t>(count * width));
}

}  // namespace

Result<Compressed> compress(ByteView chunk, int width, int level) {
  HOLDFAST_CHECK(width >= 1 && width <= kMaxPackWidth,
                 "compress() with planes of width {}", width);
  Bytes planes(chunk.size());
  sort_into_planes(chunk, static_cast<size_t>(width), planes.data());
  Compressed packed{.bytes = Bytes(ZSTD_compressBound(chunk.size())), .width = width};
  const size_t size = ZSTD_compress(packed.bytes.data(), packed.bytes.size(),
                                    planes.data(), planes.size(), level);
  if (ZSTD_isError(size) != 0 || size >= chunk.size()) {
    return Compressed{.bytes = copy_of(chunk), .width = 0};
  }
  packed.bytes.resize(size);
  return packed;
}

Result<void> decompress(ByteView packed, int width, ByteSpan chunk) {
  if (width == 0) {
    if (packed.size() != chunk.size()) {
      return corrupt("{} bytes; expected {}", packed.size(), chunk.size());
    }
    std::copy(packed.begin(), packed.end(), chunk.begin());
    return {};
  }
  Bytes planes(chunk.size());
  const size_t size =
      ZSTD_decompress(planes.data(), planes.size(), packed.data(), packed.size());
  if (ZSTD_isError(size) != 0) return corrupt("zstd: {}", ZSTD_getErrorName(size));
  if (size != chunk.size()) return corrupt("{} bytes; expected {}", size, chunk.size());
  restore_from_planes(planes, static_cast<size_t>(width), chunk);
  return {};
}

}  // namespace holdfast
