#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "holdfast/base/checked.h"
#include "holdfast/hdf5/decoded_source_internal.h"
#include "holdfast/state/strided.h"

namespace holdfast::hdf5 {
namespace {

// A band of chunks that one row of a tensor crosses should fit, because tensors are
// read row by row.
constexpr int64_t kCacheBytes = int64_t{48} << 20;
// How many bytes are decoded at once, if all are wanted, so that several threads have
// something to do.
constexpr int64_t kPartBytes = int64_t{16} << 20;
// The number under which the chunk of fill values is kept.
constexpr int64_t kFillChunk = -1;

void fill_elements(ByteSpan into, const Bytes& element) {
  if (element.empty()) {
    std::ranges::fill(into, std::byte{0});
    return;
  }
  for (size_t i = 0; i < into.size(); ++i) into[i] = element[i % element.size()];
}

// The box of a chunk, which may reach beyond the dataset.
Box chunk_box(const Dataset& dataset, std::span<const int64_t> grid) {
  Box box = Box::whole(dataset.chunk_shape);
  for (int k = 0; k < dataset.shape.rank(); ++k) {
    const int64_t size = dataset.chunk_shape[k];
    const int64_t lo = grid[static_cast<size_t>(k)] * size;
    box = box.with(k, {lo, lo + size});
  }
  return box;
}

int64_t number_of(const Dataset& dataset, std::span<const int64_t> grid) {
  int64_t number = 0;
  for (int k = 0; k < dataset.shape.rank(); ++k) {
    number = number * dataset.grid(k) + grid[static_cast<size_t>(k)];
  }
  return number;
}

using Grid = std::array<int64_t, kMaxRank>;

// The positions in the grid of the chunks that have a part of the box.
std::vector<Grid> chunks_in(const Dataset& dataset, const Box& box) {
  const int rank = box.rank();
  Grid at{};
  const auto first = [&](int k) { return box[k].lo / dataset.chunk_shape[k]; };
  const auto last = [&](int k) { return (box[k].hi - 1) / dataset.chunk_shape[k]; };
  for (int k = 0; k < rank; ++k) at[static_cast<size_t>(k)] = first(k);
  std::vector<Grid> found;
  for (;;) {
    found.push_back(at);
    int k = rank - 1;
    for (; k >= 0 && at[static_cast<size_t>(k)] == last(k); --k) {
      at[static_cast<size_t>(k)] = first(k);
    }
    if (k < 0) return found;
    ++at[static_cast<size_t>(k)];
  }
}

// How many threads decode this many chunks. To start a thread takes about as long as to
// decode some kilobytes.
size_t decoding_threads(const Dataset& dataset, size_t chunks) {
  constexpr size_t kMostThreads = 8;
  constexpr int64_t kLeastBytes = int64_t{256} << 10;  // for each thread
  if (dataset.filters.empty()) return 1;
  const int64_t bytes = dataset.chunk_bytes() * static_cast<int64_t>(chunks);
  const size_t cores = std::max<size_t>(std::thread::hardware_concurrency(), 1);
  return std::clamp<size_t>(static_cast<size_t>(bytes / kLeastBytes), 1,
                            std::min({cores, chunks, kMostThreads}));
}

// Calls `visit` for each number below `count`, on several threads, until one fails.
template <typename Visit>
Result<void> visit_on_threads(size_t count, size_t threads, const Visit& visit) {
  std::vector<Result<void>> outcomes(threads);
  std::atomic<size_t> next = 0;
  const auto work = [&](size_t thread) {
    for (size_t i = next++; i < count; i = next++) {
      outcomes[thread] = visit(i);
      if (outcomes[thread].ok()) continue;
      next = count;
      return;
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t thread = 1; thread < threads; ++thread) {
      others.emplace_back(work, thread);
    }
    work(0);
  }
  for (Result<void>& outcome : outcomes) HOLDFAST_TRY(std::move(outcome));
  return {};
}

}  // namespace

std::shared_ptr<const Bytes> ChunkCache::find(const Key& key) {
  MutexLock lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->bytes;
}

void ChunkCache::put(const Key& key, std::shared_ptr<const Bytes> bytes) {
  MutexLock lock(mutex_);
  if (places_.contains(key)) return;
  total_ += std::ssize(*bytes);
  entries_.push_front({key, std::move(bytes)});
  places_[key] = entries_.begin();
  while (total_ > kCacheBytes && entries_.size() > 1) {
    total_ -= std::ssize(*entries_.back().bytes);
    places_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

Result<Bytes> read_chunk(const Source& source, const Dataset& dataset, int64_t number) {
  const auto found = dataset.chunks.find(number);
  if (found == dataset.chunks.end()) {
    Bytes bytes(static_cast<size_t>(dataset.chunk_bytes()));
    fill_elements(bytes, dataset.fill);
    return bytes;
  }
  const Chunk& chunk = found->second;
  Bytes stored = HOLDFAST_TRY(source.read_bytes(chunk.offset, chunk.bytes));
  auto bytes = decode_chunk(dataset.filters, chunk.mask, std::move(stored),
                            dataset.chunk_bytes());
  if (!bytes.ok()) {
    return corrupt("{}: chunk {}, bytes {} to {}, {}", dataset.where, number,
                   chunk.offset, chunk.offset + chunk.bytes, bytes.error().message());
  }
  swap_numbers(*bytes, dataset.type.swapped);
  return *std::move(bytes);
}

Result<void> read_all_chunks(const Source& source, const Dataset& dataset,
                             ByteSpan into) {
  const Box whole = Box::whole(dataset.shape);
  const int64_t element = dataset.element_bytes();
  const Map target = Map::dense(whole, element);
  for (const Grid& grid : chunks_in(dataset, whole)) {
    const auto at =
        std::span<const int64_t>(grid).first(static_cast<size_t>(whole.rank()));
    const Box chunk = chunk_box(dataset, at);
    const Bytes bytes =
        HOLDFAST_TRY(read_chunk(source, dataset, number_of(dataset, at)));
    const auto hit = intersect(whole, chunk);
    HOLDFAST_CHECK(hit.has_value(), "chunk {}", to_string(chunk));
    run_copy(plan_copy(Map::dense(chunk, element).narrowed(chunk, *hit),
                       target.narrowed(whole, *hit), hit->shape(), element),
             bytes, into);
  }
  return {};
}

Result<int64_t> DecodedSource::add(std::shared_ptr<const Dataset> dataset) {
  const int64_t begin = size_;
  const auto end = checked_add(begin, dataset->bytes());
  if (!end) return corrupt("{}: more than 2^63 bytes in one file", dataset->where);
  size_ = *end;
  if (begin == *end) return begin;
  regions_.emplace(begin, Region{regions_.size(), std::move(dataset)});
  return begin;
}

DecodedSource::Place DecodedSource::dataset_at(int64_t offset) const {
  const auto next = regions_.upper_bound(offset);
  if (offset < plain_->size() || next == regions_.begin()) return {};
  return {std::prev(next)->second.dataset.get(), std::prev(next)->first};
}

Result<void> DecodedSource::read_inside(int64_t offset, ByteSpan into) const {
  while (!into.empty()) {
    const bool inside = offset < plain_->size();
    const auto next = regions_.upper_bound(offset);
    const int64_t end =
        inside ? plain_->size() : (next == regions_.end() ? size_ : next->first);
    const auto count = static_cast<size_t>(std::min(end - offset, std::ssize(into)));
    HOLDFAST_TRY(inside
                     ? plain_->read(offset, into.first(count))
                     : read_region(std::prev(next)->second,
                                   offset - std::prev(next)->first, into.first(count)));
    offset += static_cast<int64_t>(count);
    into = into.subspan(count);
  }
  return {};
}

Result<void> DecodedSource::read_region(const Region& region, int64_t offset,
                                        ByteSpan into) const {
  const int64_t element = region.dataset->element_bytes();
  const int64_t skip = offset % element;
  if (skip == 0 && std::ssize(into) % element == 0) {
    return read_elements(region, offset / element, into);
  }
  // A reader asked for a part of an element.
  const int64_t count = divide_up(skip + std::ssize(into), element);
  Bytes whole(static_cast<size_t>(count * element));
  HOLDFAST_TRY(read_elements(region, offset / element, whole));
  std::copy_n(whole.begin() + skip, into.size(), into.begin());
  return {};
}

Result<void> DecodedSource::read_elements(const Region& region, int64_t first,
                                          ByteSpan into) const {
  const Dataset& dataset = *region.dataset;
  if (dataset.storage == Storage::kNone) {
    fill_elements(into, dataset.fill);
    return {};
  }
  const int64_t element = dataset.element_bytes();
  const int64_t last = first + std::ssize(into) / element;
  for (const Box& box : flat_range(Box::whole(dataset.shape), first, last)) {
    const auto bytes = static_cast<size_t>(box.elements() * element);
    const Map dense = Map::dense(box, element);
    HOLDFAST_TRY(read_box_of(region, box, dense, into.first(bytes)));
    into = into.subspan(bytes);
  }
  return {};
}

bool DecodedSource::has_chunks(int64_t offset) const {
  const auto found = regions_.find(offset);
  return found != regions_.end() &&
         found->second.dataset->storage == Storage::kChunked;
}

Result<void> DecodedSource::read_chunks(int64_t offset, const Box& box, const Map& into,
                                        ByteSpan memory) const {
  return read_box_of(regions_.at(offset), box, into, memory);
}

int64_t DecodedSource::best_part(int64_t offset) const {
  if (!has_chunks(offset)) return 0;
  const Dataset& dataset = *regions_.at(offset).dataset;
  if (dataset.filters.empty()) return 0;
  // A band are the elements from the first to the last of the chunks that a row crosses.
  const int rank = dataset.shape.rank();
  int first = 0;
  while (first + 1 < rank && dataset.chunk_shape[first] == 1) ++first;
  int64_t band = dataset.element_bytes();
  for (int k = first; k < rank; ++k) {
    const int64_t size = k == first ? std::min(dataset.chunk_shape[k], dataset.shape[k])
                                    : dataset.shape[k];
    band = checked_mul(band, size).value_or(INT64_MAX);
  }
  return band >= kPartBytes ? band : kPartBytes / band * band;
}

bool DecodedSource::is_stored(int64_t offset) const {
  const auto [dataset, begin] = dataset_at(offset);
  if (dataset == nullptr) return true;
  if (dataset->storage == Storage::kNone) return false;
  const int64_t element = (offset - begin) / dataset->element_bytes();
  return dataset->chunks.contains(chunk_of(*dataset, element).number);
}

Result<void> DecodedSource::read_box_of(const Region& region, const Box& box,
                                        const Map& target, ByteSpan into) const {
  const Dataset& dataset = *region.dataset;
  const int64_t element = dataset.element_bytes();
  const std::vector<Grid> grid = chunks_in(dataset, box);
  // Each chunk has bytes of its own in `into`, so threads do not meet there.
  const auto read_one = [&](size_t i) -> Result<void> {
    const auto at =
        std::span<const int64_t>(grid[i]).first(static_cast<size_t>(box.rank()));
    const Box chunk = chunk_box(dataset, at);
    const auto hit = intersect(box, chunk);
    HOLDFAST_CHECK(hit.has_value(), "chunk {}", to_string(chunk));
    // Nobody asks again for a chunk that is used as a whole.
    const bool whole = *hit == intersect(Box::whole(dataset.shape), chunk);
    const auto bytes = HOLDFAST_TRY(decoded(region, number_of(dataset, at), whole));
    const Map from = Map::dense(chunk, element);
    run_copy(plan_copy(from.narrowed(chunk, *hit), target.narrowed(box, *hit),
                       hit->shape(), element),
             *bytes, into);
    return {};
  };
  return visit_on_threads(grid.size(), decoding_threads(dataset, grid.size()), read_one);
}

Result<std::shared_ptr<const Bytes>> DecodedSource::decoded(const Region& region,
                                                            int64_t number,
                                                            bool once) const {
  if (!region.dataset->chunks.contains(number)) number = kFillChunk;
  const ChunkCache::Key key{region.number, number};
  if (auto found = cache_.find(key)) return found;
  auto bytes = std::make_shared<const Bytes>(
      HOLDFAST_TRY(read_chunk(*file_, *region.dataset, number)));
  if (!once || number == kFillChunk) cache_.put(key, bytes);
  return std::shared_ptr<const Bytes>(std::move(bytes));
}

}  // namespace holdfast::hdf5
