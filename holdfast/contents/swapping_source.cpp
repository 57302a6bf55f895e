#include "holdfast/contents/swapping_source.h"

#include <algorithm>
#include <array>

namespace holdfast {
namespace {

constexpr int64_t kMaxWidth = 16;

Result<void> check_ranges(const Source& source, std::span<const SwappedRange> ranges) {
  int64_t end = 0;
  for (const SwappedRange& range : ranges) {
    HOLDFAST_CHECK(range.width >= 2 && range.width <= kMaxWidth, "width {}",
                   range.width);
    if (range.offset < end || range.bytes < 0 || range.bytes % range.width != 0 ||
        range.offset > source.size() - range.bytes) {
      return corrupt(
          "{}: {} bytes at {} are big-endian numbers; expected whole numbers that "
          "begin at or after {} and end before {}",
          source.name(), range.bytes, range.offset, end, source.size());
    }
    end = range.offset + range.bytes;
  }
  return {};
}

template <typename T>
void swap_as(ByteSpan bytes) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(T)) {
    std::reverse(bytes.data() + i, bytes.data() + i + sizeof(T));
  }
}

// The usual widths have loops of their own, because the compiler makes one instruction
// of a reversal of known length.
void swap_numbers(ByteSpan bytes, int64_t width) {
  if (width == 2) return swap_as<uint16_t>(bytes);
  if (width == 4) return swap_as<uint32_t>(bytes);
  if (width == 8) return swap_as<uint64_t>(bytes);
  for (auto at = bytes.begin(); at != bytes.end(); at += width) {
    std::reverse(at, at + width);
  }
}

}  // namespace

Result<std::shared_ptr<SwappingSource>> SwappingSource::create(
    std::shared_ptr<const Source> inner, std::vector<SwappedRange> ranges) {
  std::ranges::sort(ranges, {}, &SwappedRange::offset);
  std::erase_if(ranges, [](const SwappedRange& range) { return range.bytes == 0; });
  HOLDFAST_TRY(check_ranges(*inner, ranges));
  return std::shared_ptr<SwappingSource>(
      new SwappingSource(std::move(inner), std::move(ranges)));
}

const SwappedRange* SwappingSource::range_at(int64_t offset) const {
  const auto next =
      std::ranges::upper_bound(ranges_, offset, {}, &SwappedRange::offset);
  if (next == ranges_.begin()) return nullptr;
  const SwappedRange& range = *std::prev(next);
  return offset < range.offset + range.bytes ? &range : nullptr;
}

Result<void> SwappingSource::read_inside(int64_t offset, ByteSpan into) const {
  HOLDFAST_TRY(inner_->read(offset, into));
  const int64_t end = offset + std::ssize(into);
  auto range = std::ranges::upper_bound(ranges_, offset, {}, &SwappedRange::offset);
  if (range != ranges_.begin()) --range;
  for (; range != ranges_.end() && range->offset < end; ++range) {
    const int64_t first = std::max(offset, range->offset);
    const int64_t last = std::min(end, range->offset + range->bytes);
    if (first >= last) continue;
    HOLDFAST_TRY(swap_range(*range, first,
                            into.subspan(static_cast<size_t>(first - offset),
                                         static_cast<size_t>(last - first))));
  }
  return {};
}

Result<void> SwappingSource::swap_range(const SwappedRange& range, int64_t offset,
                                        ByteSpan into) const {
  const int64_t width = range.width;
  if (const int64_t skip = (offset - range.offset) % width; skip != 0) {
    const int64_t head = std::min<int64_t>(width - skip, std::ssize(into));
    HOLDFAST_TRY(
        read_part(offset - skip, width, offset, into.first(static_cast<size_t>(head))));
    offset += head;
    into = into.subspan(static_cast<size_t>(head));
  }
  const auto rest = static_cast<size_t>(std::ssize(into) % width);
  const ByteSpan whole = into.first(into.size() - rest);
  swap_numbers(whole, width);
  if (rest == 0) return {};
  const int64_t number = offset + std::ssize(whole);
  return read_part(number, width, number, into.last(rest));
}

Result<void> SwappingSource::read_part(int64_t number, int64_t width, int64_t offset,
                                       ByteSpan into) const {
  std::array<std::byte, kMaxWidth> bytes{};
  const ByteSpan whole = ByteSpan(bytes).first(static_cast<size_t>(width));
  HOLDFAST_TRY(inner_->read(number, whole));
  std::ranges::reverse(whole);
  std::copy_n(whole.begin() + (offset - number), into.size(), into.begin());
  return {};
}

}  // namespace holdfast
