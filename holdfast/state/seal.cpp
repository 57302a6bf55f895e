#include "holdfast/state/seal.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "holdfast/base/checked.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/state/seal_kernel.h"

namespace holdfast {
namespace {

constexpr uint64_t kWord = sizeof(uint32_t);
constexpr int64_t kShort = 64;    // bytes; shorter runs are first copied to a buffer
constexpr int64_t kStrip = 1024;  // bytes that a tile has along its closest dimension
constexpr int64_t kTile = 32 << 10;  // bytes of the buffer; fits a first-level cache

size_t at(int k) { return static_cast<size_t>(k); }

// Sums canonical bytes block by block. The sum of a block is multiplied by its A_j(h)
// only once, so that many short runs in a block cost little more than one long run.
class Summer {
 public:
  explicit Summer(SealKernel kernel = seal_kernels().back().sum) : kernel_(kernel) {}

  void add(const std::byte* run, uint64_t offset, uint64_t size) {
    if (size == 0) return;
    seal_.bytes += size;
    if (const uint64_t inside = offset % kWord; inside != 0) {
      const uint64_t head = std::min(kWord - inside, size);
      add_partial(run, offset, head);
      run += head, offset += head, size -= head;
    }
    uint64_t word = offset / kWord, left = size / kWord;
    while (left > 0) {
      const uint64_t part = std::min(left, kSealBlock - word % kSealBlock);
      add_words(run, word, part);
      run += part * kWord, word += part, left -= part;
    }
    if (size % kWord != 0) add_partial(run, word * kWord, size % kWord);
  }

  Seal finish() {
    close_block();
    return seal_;
  }

 private:
  void add_words(const std::byte* words, uint64_t word, uint64_t count) {
    enter_block(word / kSealBlock);
    const SealSums sums = kernel_(words, word % kSealBlock, count);
    for (size_t j = 0; j < kSealLanes; ++j) block_sums_.lane[j] += sums.lane[j];
  }

  // Adds some bytes of one word; its other bytes count as 0.
  void add_partial(const std::byte* bytes, uint64_t offset, uint64_t count) {
    std::array<std::byte, kWord> word{};
    std::memcpy(word.data() + offset % kWord, bytes, count);
    add_words(word.data(), offset / kWord, 1);
  }

  void enter_block(uint64_t block) {
    if (block == block_) return;
    close_block();
    block_ = block;
  }

  void close_block() {
    for (size_t j = 0; j < kSealLanes; ++j) {
      seal_.lanes[j] += (mix64(mix64(j) ^ block_) | 1) * block_sums_.lane[j];
    }
    block_sums_ = {};
  }

  SealKernel kernel_;
  Seal seal_;
  uint64_t block_ = 0;
  SealSums block_sums_;
};

// Adds every run of `plan`, whose target side is canonical bytes.
void add_loops(Summer& summer, const StridedCopy& plan, int depth,
               const std::byte* from, int64_t to) {
  const StridedCopy::Loop& loop = plan.loop[at(depth)];
  const bool innermost = depth == plan.loops - 1;
  for (int64_t i = 0; i < loop.count; ++i) {
    const std::byte* run = from + i * loop.from_stride;
    const int64_t offset = to + i * loop.to_stride;
    if (innermost) {
      summer.add(run, static_cast<uint64_t>(offset), static_cast<uint64_t>(plan.run));
    } else {
      add_loops(summer, plan, depth + 1, run, offset);
    }
  }
}

void add_runs(Summer& summer, const StridedCopy& plan,
              std::span<const std::byte> from) {
  const std::byte* first = from.data() + plan.from;
  if (plan.loops > 0) return add_loops(summer, plan, 0, first, plan.to);
  summer.add(first, static_cast<uint64_t>(plan.to), static_cast<uint64_t>(plan.run));
}

// The dimension in which neighbouring elements lie closest together in the holder.
int closest_dimension(const Map& map, const Shape& shape) {
  int best = -1;
  for (int k = 0; k < shape.rank(); ++k) {
    if (shape[k] == 1) continue;
    if (best < 0 || std::abs(map.strides[at(k)]) <= std::abs(map.strides[at(best)])) {
      best = k;
    }
  }
  return best;
}

// The sizes of a tile of at most kTile bytes. A tile first extends along the holder's
// closest dimension, so that it touches few pages and whole cache lines. Then it
// extends along the innermost dimensions, so that canonical runs are as long as
// possible.
std::array<int64_t, kMaxRank> choose_tile(const Map& map, const Shape& shape,
                                          int64_t element_bytes) {
  std::array<int64_t, kMaxRank> tile;
  tile.fill(1);
  const int closest = closest_dimension(map, shape);
  tile[at(closest)] = std::min(shape[closest], kStrip / element_bytes);
  int64_t room = kTile / (tile[at(closest)] * element_bytes);
  for (int k = shape.rank() - 1; k >= 0 && room > 1; --k) {
    const int64_t grown = std::min(divide_up(shape[k], tile[at(k)]), room);
    tile[at(k)] *= grown;
    room /= grown;
  }
  return tile;
}

// Calls visit(part) for each tile of `box` in row-major order.
template <typename Visit>
void for_each_tile(const Box& box, const std::array<int64_t, kMaxRank>& tile, int k,
                   const Box& part, Visit&& visit) {
  if (k == box.rank()) return visit(part);
  for (int64_t lo = box[k].lo; lo < box[k].hi; lo += tile[at(k)]) {
    const Extent extent{lo, std::min(lo + tile[at(k)], box[k].hi)};
    for_each_tile(box, tile, k + 1, part.with(k, extent), visit);
  }
}

// Makes the copy of a tile follow the order of the holder's memory: the buffer is in
// the cache and the holder is not.
void put_closest_innermost(StridedCopy& gather) {
  if (gather.loops == 0) return;
  StridedCopy::Loop& innermost = gather.loop[at(gather.loops - 1)];
  for (int k = 0; k < gather.loops - 1; ++k) {
    StridedCopy::Loop& loop = gather.loop[at(k)];
    if (std::abs(loop.from_stride) < std::abs(innermost.from_stride)) {
      std::swap(loop, innermost);
    }
  }
}

// Adds a box whose neighbouring canonical elements lie far apart in the holder: copies
// it to a buffer tile by tile.
void add_gathered(Summer& summer, const Box& box, const Map& map, const Map& canonical,
                  int64_t element_bytes, std::span<const std::byte> holder) {
  std::vector<std::byte> buffer(at(kTile));
  const auto tile = choose_tile(map, box.shape(), element_bytes);
  for_each_tile(box, tile, 0, box, [&](const Box& part) {
    const Map dense = Map::dense(part, element_bytes);
    const Shape shape = part.shape();
    StridedCopy gather =
        plan_copy(map.narrowed(box, part), dense, shape, element_bytes);
    put_closest_innermost(gather);
    run_copy(gather, holder, buffer);
    add_runs(summer,
             plan_copy(dense, canonical.narrowed(box, part), shape, element_bytes),
             buffer);
  });
}

void append(std::string& text, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    text.push_back(static_cast<char>((value >> shift) & 0xff));
  }
}

}  // namespace

Seal& Seal::operator+=(const Seal& other) {
  for (size_t j = 0; j < lanes.size(); ++j) lanes[j] += other.lanes[j];
  bytes += other.bytes;
  return *this;
}

Seal seal_bytes_by(SealKernel kernel, std::span<const std::byte> run, uint64_t offset) {
  Summer summer(kernel);
  summer.add(run.data(), offset, run.size());
  return summer.finish();
}

Seal seal_bytes(std::span<const std::byte> run, uint64_t offset) {
  return seal_bytes_by(seal_kernels().back().sum, run, offset);
}

Seal seal_box(const Shape& shape, Dtype dtype, const Box& box, const Map& map,
              std::span<const std::byte> holder) {
  HOLDFAST_CHECK(box.inside(shape), "box {} of shape {}", to_string(box),
                 to_string(shape));
  if (box.empty()) return {};
  const int64_t bytes = bytes_of(dtype);
  const ByteRange touched = range_of(map, box.shape(), bytes);
  HOLDFAST_CHECK(
      touched.first >= 0 && static_cast<uint64_t>(touched.last) <= holder.size(),
      "seal touches bytes {} to {} of {}", touched.first, touched.last, holder.size());
  const Box whole = Box::whole(shape);
  const Map canonical = Map::dense(whole, bytes).narrowed(whole, box);
  const StridedCopy plan = plan_copy(map, canonical, box.shape(), bytes);
  const int64_t longest = plan_copy(canonical, canonical, box.shape(), bytes).run;
  Summer summer;
  if (plan.run < std::min(longest, kShort)) {
    add_gathered(summer, box, map, canonical, bytes, holder);
  } else {
    add_runs(summer, plan, holder);
  }
  return summer.finish();
}

std::string print_seal(const Seal& seal, Dtype dtype, const Shape& shape) {
  std::string text;
  for (const uint64_t lane : seal.lanes) append(text, lane);
  append(text, seal.bytes);
  text += name_of(dtype);
  text.push_back('\0');
  append(text, static_cast<uint64_t>(shape.rank()));
  for (const int64_t size : shape.sizes()) append(text, static_cast<uint64_t>(size));
  return xxh3_128(std::as_bytes(std::span(text))).hex();
}

}  // namespace holdfast
