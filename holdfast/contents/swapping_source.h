// A file in which some numbers are big-endian, as a Source that gives them
// little-endian. All offsets stay the same, so that a layout of the file is a layout of
// this source too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holdfast/env/source_sink.h"

namespace holdfast {

// Bytes of a file that are big-endian numbers without gaps.
struct SwappedRange {
  int64_t offset = 0;
  int64_t bytes = 0;  // a multiple of `width`
  // The bytes of one number, from 2 to 16. A complex element is two numbers, so that
  // its width is half of the element's.
  int64_t width = 0;
};

// Safe from several threads, if `inner` is.
class SwappingSource : public Source {
 public:
  // `inner` may be shared with other users of the file. Fails with kCorrupt if ranges
  // overlap, leave the file or do not hold whole numbers.
  static Result<std::shared_ptr<SwappingSource>> create(
      std::shared_ptr<const Source> inner, std::vector<SwappedRange> ranges);

  const std::string& name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }

  // The range that has this byte; null if the byte is not part of a swapped number.
  const SwappedRange* range_at(int64_t offset) const;

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override;

 private:
  SwappingSource(std::shared_ptr<const Source> inner, std::vector<SwappedRange> ranges)
      : inner_(std::move(inner)), ranges_(std::move(ranges)) {}

  // Swaps what was read into `into` of one range.
  Result<void> swap_range(const SwappedRange& range, int64_t offset,
                          ByteSpan into) const;
  // Fills `into` with some bytes of the number that begins at `number`.
  Result<void> read_part(int64_t number, int64_t width, int64_t offset,
                         ByteSpan into) const;

  const std::shared_ptr<const Source> inner_;
  const std::vector<SwappedRange> ranges_;  // in order of offset
};

}  // namespace holdfast
