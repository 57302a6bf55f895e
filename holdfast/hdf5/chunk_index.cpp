#include "holdfast/hdf5/chunk_index_internal.h"

#include <algorithm>
#include <array>

#include "holdfast/base/checked.h"
#include "holdfast/hdf5/links_internal.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kChunkTree = "B-tree of chunks";
// The types of B-trees of version 2 that index chunks without and with filters.
constexpr uint8_t kTreeOfChunks = 10;
constexpr uint8_t kTreeOfFilteredChunks = 11;
constexpr uint64_t kMaskBytes = 4;
constexpr uint32_t kNoFilters = UINT32_MAX;
// An implicit index names any number of chunks in no bytes. A small file may have this
// many, and a large one a chunk for 64 bytes.
constexpr int64_t kFewChunks = int64_t{1} << 20;

// The position of a chunk in the grid.
using Position = std::array<int64_t, kMaxRank>;

class IndexReader {
 public:
  IndexReader(const File& file, const ChunkIndex& index, Dataset& dataset)
      : file_(file), index_(index), dataset_(dataset), where_(dataset.where) {}

  Result<void> read() {
    switch (index_.kind) {
      case IndexKind::kTree: return read_tree();
      case IndexKind::kSingle: return read_single();
      case IndexKind::kImplicit: return read_implicit();
      case IndexKind::kFixedArray:
      case IndexKind::kExtensibleArray: return read_array();
      case IndexKind::kNewTree: return read_new_tree();
    }
    return corrupt("{}: chunk index is of kind {}; expected 1 to 5", where_,
                   static_cast<int>(index_.kind));
  }

 private:
  int rank() const { return dataset_.shape.rank(); }
  bool filtered() const { return !dataset_.filters.empty(); }

  Result<void> read_tree() {
    const TreeKind kind{.type = 1,
                        .key_bytes = 8 + 8 * (static_cast<uint64_t>(rank()) + 1),
                        .what = kChunkTree};
    return visit_tree(file_, index_.address, kind, where_,
                      [&](const TreeEntry& entry) { return add_entry(entry); });
  }

  Result<void> add_entry(const TreeEntry& entry) {
    Cursor cursor = file_.cursor(entry.key);
    Chunk chunk{.size_bytes = 4};
    chunk.bytes = cursor.u32();
    chunk.mask = cursor.u32();
    Position at{};
    for (int k = 0; k < rank(); ++k) {
      const uint64_t element = cursor.number(8);
      const int64_t size = dataset_.chunk_shape[k];
      if (element >= static_cast<uint64_t>(dataset_.shape[k]) ||
          signed_of(element) % size != 0) {
        return corrupt(
            "{}: {} has a chunk at {} in dimension {}; expected a multiple of "
            "{} below {}",
            where_, kChunkTree, element, k, size, dataset_.shape[k]);
      }
      at[static_cast<size_t>(k)] = signed_of(element) / size;
    }
    chunk.size_field = file_.base() + signed_of(entry.key_address);
    chunk.address_field = chunk.size_field + std::ssize(entry.key);
    return add(at, entry.child, chunk);
  }

  Result<void> read_single() {
    for (int k = 0; k < rank(); ++k) {
      if (dataset_.grid(k) == 1) continue;
      return corrupt("{}: has {} chunks in dimension {}, but an index of one", where_,
                     dataset_.grid(k), k);
    }
    Chunk chunk = index_.single;
    if (chunk.size_bytes == 0) chunk.bytes = dataset_.chunk_bytes();
    return add({}, index_.address, chunk);
  }

  // All chunks lie one after the other, without filters.
  Result<void> read_implicit() {
    if (filtered()) return corrupt("{}: has filters and an implicit index", where_);
    HOLDFAST_TRY(measure_grid(-1));
    int64_t count = 1;
    for (int k = 0; k < rank(); ++k) {
      const auto more = checked_mul(count, dataset_.grid(k));
      if (!more || *more > kFewChunks + file_.source()->size() / 64) {
        return unsupported("{} has more than {} chunks in a file of {} bytes", where_,
                           count, file_.source()->size());
      }
      count = *more;
    }
    Position at{};
    for (int64_t i = 0; i < count; ++i) {
      const auto before = checked_mul(number_in_grid(at), dataset_.chunk_bytes());
      if (!before) return corrupt("{}: has chunks behind byte 2^63", where_);
      const uint64_t address = index_.address + static_cast<uint64_t>(*before);
      HOLDFAST_TRY(add(at, address, {.bytes = dataset_.chunk_bytes()}));
      for (int k = rank() - 1; k >= 0; --k) {
        auto& position = at[static_cast<size_t>(k)];
        if (++position < dataset_.grid(k)) break;
        position = 0;
      }
    }
    return {};
  }

  Result<void> read_array() {
    const bool grows = index_.kind == IndexKind::kExtensibleArray;
    HOLDFAST_TRY(measure_grid(grows ? HOLDFAST_TRY(find_growing()) : -1));
    const ArrayKind kind{.filtered = filtered(),
                         .element_bytes =
                             file_.sizes().offset + (filtered() ? kMaskBytes : 0)};
    const VisitRecord visit = [&](const IndexRecord& record) -> Result<void> {
      Chunk chunk;
      Cursor cursor = file_.cursor(record.bytes);
      const uint64_t address = read_chunk_of(cursor, record, 0, chunk);
      if (address == kUndefined) return {};
      return add(HOLDFAST_TRY(position_of(record.number)), address, chunk);
    };
    return grows ? visit_extensible_array(file_, index_.address, kind, where_, visit)
                 : visit_fixed_array(file_, index_.address, kind, where_, visit);
  }

  Result<void> read_new_tree() {
    const uint64_t positions = 8 * static_cast<uint64_t>(rank());
    const uint64_t least =
        file_.sizes().offset + positions + (filtered() ? kMaskBytes + 1 : 0);
    const VisitRecord visit = [&](const IndexRecord& record) -> Result<void> {
      if (record.bytes.size() < least || record.bytes.size() > least + 8) {
        return corrupt("{}: {} has records of {} bytes; expected {} or some more",
                       where_, kChunkTree, record.bytes.size(), least);
      }
      Chunk chunk;
      Cursor cursor = file_.cursor(record.bytes);
      const uint64_t address = read_chunk_of(cursor, record, positions, chunk);
      Position at{};
      for (int k = 0; k < rank(); ++k) {
        // A number that does not fit is outside the grid, too.
        const uint64_t number = std::min(cursor.number(8), uint64_t{INT64_MAX});
        at[static_cast<size_t>(k)] = signed_of(number);
      }
      return add(at, address, chunk);
    };
    return visit_new_tree(file_, index_.address,
                          filtered() ? kTreeOfFilteredChunks : kTreeOfChunks, where_,
                          visit);
  }

  // Reads the address of a chunk and, if there are filters, its size and mask. The last
  // `behind` bytes of the record do not belong to them. Returns the address.
  uint64_t read_chunk_of(Cursor& cursor, const IndexRecord& record, uint64_t behind,
                         Chunk& chunk) const {
    chunk.address_field = file_.base() + signed_of(record.address);
    chunk.index_block = file_.base() + signed_of(record.block);
    chunk.index_block_bytes = signed_of(record.block_bytes);
    const uint64_t address = cursor.address();
    chunk.bytes = dataset_.chunk_bytes();
    if (!filtered()) return address;
    chunk.size_field = chunk.address_field + signed_of(cursor.at());
    chunk.size_bytes = record.bytes.size() - cursor.at() - kMaskBytes - behind;
    // No chunk is so large; place_of() refuses it.
    chunk.bytes = signed_of(
        std::min(cursor.number(chunk.size_bytes), uint64_t{INT64_MAX}));
    chunk.mask = cursor.u32();
    return address;
  }

  // The dimension of which an extensible array can hold any number of chunks.
  Result<int> find_growing() const {
    const auto& most = index_.most_sizes;
    if (std::ranges::count(most, kUnlimited) != 1) {
      return corrupt(
          "{}: has {} dimensions that may grow, but an extensible array of chunks; "
          "expected one",
          where_, std::ranges::count(most, kUnlimited));
    }
    return static_cast<int>(std::ranges::find(most, kUnlimited) - most.begin());
  }

  // Arrays count the chunks of the largest grid that the dataset may have. The growing
  // dimension, if there is one, counts slowest.
  Result<void> measure_grid(int growing) {
    int64_t before = 1;
    for (int i = 0; i < rank(); ++i) {
      const int k = growing < 0 ? i : (i == 0 ? growing : (i <= growing ? i - 1 : i));
      order_[static_cast<size_t>(i)] = k;
    }
    for (int i = rank() - 1; i >= 0; --i) {
      const int k = order_[static_cast<size_t>(i)];
      const int64_t most = index_.most_sizes[static_cast<size_t>(k)];
      if (most < dataset_.shape[k]) {
        return corrupt("{}: dataspace message has the size {} in dimension {}, but at "
                       "most {}",
                       where_, dataset_.shape[k], k, most);
      }
      steps_[static_cast<size_t>(k)] = before;
      if (k == growing) break;
      const auto next = checked_mul(before, divide_up(most, dataset_.chunk_shape[k]));
      if (!next) return corrupt("{}: may have more than 2^63 chunks", where_);
      before = *next;
    }
    return {};
  }

  // The grid that is measured holds every position of the dataset, so this cannot
  // overflow unless the growing dimension is that large, and then no file has the chunk.
  int64_t number_in_grid(const Position& at) const {
    int64_t number = 0;
    for (size_t k = 0; k < static_cast<size_t>(rank()); ++k) {
      number += at[k] * steps_[k];
    }
    return number;
  }

  Result<Position> position_of(uint64_t number) const {
    Position at{};
    int64_t left = signed_of(number);
    for (int i = 0; i < rank(); ++i) {
      const auto k = static_cast<size_t>(order_[static_cast<size_t>(i)]);
      at[k] = left / steps_[k];
      left %= steps_[k];
    }
    return at;
  }

  Result<void> add(const Position& at, uint64_t address, Chunk chunk) {
    int64_t number = 0;
    bool edge = false;
    for (int k = 0; k < rank(); ++k) {
      const int64_t position = at[static_cast<size_t>(k)];
      const int64_t size = dataset_.chunk_shape[k];
      if (position >= dataset_.grid(k)) {
        return corrupt(
            "{}: index has a chunk at {} in dimension {}; expected less than {}", where_,
            position, k, dataset_.grid(k));
      }
      number = number * dataset_.grid(k) + position;
      edge = edge || dataset_.shape[k] - position * size < size;
    }
    if (edge && index_.plain_edges) chunk.mask = kNoFilters;
    chunk.offset = HOLDFAST_TRY(file_.place_of(
        address, static_cast<uint64_t>(chunk.bytes), where_, "chunk"));
    const auto fits = check_stored_size(dataset_.filters, chunk.mask, chunk.bytes,
                                        dataset_.chunk_bytes());
    if (!fits.ok()) {
      return corrupt("{}: chunk {} {}", where_, number, fits.error().message());
    }
    if (!dataset_.chunks.emplace(number, chunk).second) {
      return corrupt("{}: {} has the chunk {} twice", where_, kChunkTree, number);
    }
    return {};
  }

  const File& file_;
  const ChunkIndex& index_;
  Dataset& dataset_;
  const std::string& where_;
  // For arrays: the dimensions, slowest first, and how far apart the numbers of
  // neighbours in each dimension are.
  std::array<int, kMaxRank> order_{};
  std::array<int64_t, kMaxRank> steps_{};
};

}  // namespace

Result<void> read_chunks(const File& file, const ChunkIndex& index, Dataset& dataset) {
  return IndexReader(file, index, dataset).read();
}

}  // namespace holdfast::hdf5
