#include <algorithm>
#include <bit>

#include "holdfast/hdf5/fractal_heap_internal.h"
#include "holdfast/hdf5/lookup3.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kHeap = "fractal heap";
// How deep indirect blocks may be nested. Each holds at least twice as much as those
// below it.
constexpr int kMostIndirect = 32;
constexpr uint64_t kMostRows = 64;

uint64_t log2_of(uint64_t value) {
  return static_cast<uint64_t>(std::bit_width(value)) - 1;
}

}  // namespace

Result<FractalHeap> FractalHeap::open(const File& file, uint64_t address,
                                      const std::string& where) {
  FractalHeap heap(file, where);
  HOLDFAST_TRY(heap.read_head(address));
  HOLDFAST_TRY(heap.check_head());
  heap.offset_bytes_ = (heap.max_bits_ + 7) / 8;
  heap.length_bytes_ =
      std::min((log2_of(heap.most_direct_) + 7) / 8,
               log2_of(std::max<uint64_t>(heap.most_managed_, 1)) / 8 + 1);
  return heap;
}

Result<void> FractalHeap::read_head(uint64_t address) {
  const Sizes sizes = file_.sizes();
  const uint64_t bytes = 26 + 12 * uint64_t{sizes.length} + 3 * uint64_t{sizes.offset};
  const Bytes head =
      HOLDFAST_TRY(file_.read_block(address, bytes, "FRHP", where_, kHeap));
  Cursor cursor = file_.cursor(head);
  cursor.skip(5);
  id_bytes_ = cursor.u16();
  const uint16_t filter_bytes = cursor.u16();
  has_sums_ = (cursor.u8() & 2) != 0;
  most_managed_ = cursor.u32();
  cursor.skip(2 * uint64_t{sizes.offset} + 10 * uint64_t{sizes.length});
  width_ = cursor.u16();
  first_bytes_ = cursor.length();
  most_direct_ = cursor.length();
  max_bits_ = cursor.u16();
  cursor.skip(2);
  root_ = cursor.address();
  root_rows_ = cursor.u16();
  if (filter_bytes != 0) {
    return unsupported("{} has a {} with filters; expected one without", where_, kHeap);
  }
  return check_sum(head, where_, kHeap);
}

Result<void> FractalHeap::check_head() const {
  const bool fits = width_ > 0 && width_ <= 1024 && std::has_single_bit(first_bytes_) &&
                    std::has_single_bit(most_direct_) && first_bytes_ <= most_direct_ &&
                    most_direct_ <= (uint64_t{1} << 32) && max_bits_ <= 64 &&
                    root_rows_ <= kMostRows && id_bytes_ > 0 && id_bytes_ <= 64;
  if (fits) return {};
  return corrupt(
      "{}: {} has rows of {} blocks of {} to {} bytes; expected powers of two", where_,
      kHeap, width_, first_bytes_, most_direct_);
}

Result<std::optional<Bytes>> FractalHeap::read_object(ByteView id) {
  Cursor cursor = file_.cursor(id);
  const uint8_t flags = cursor.u8();
  const int kind = flags >> 4 & 3;
  if (kind == 1) return std::optional<Bytes>();
  if (kind == 2) {
    const ByteView object = cursor.take((flags & 15) + uint64_t{1});
    HOLDFAST_TRY(cursor.check(where_, kHeap));
    return std::optional(copy_of(object));
  }
  const uint64_t offset = cursor.number(std::min<size_t>(offset_bytes_, 8));
  const uint64_t count = cursor.number(length_bytes_);
  HOLDFAST_TRY(cursor.check(where_, kHeap));
  if (flags >> 6 != 0 || kind != 0 || count > most_direct_) {
    return corrupt("{}: {} has an object with the ID {}", where_, kHeap, to_hex(id));
  }
  return std::optional(HOLDFAST_TRY(read_managed(offset, count)));
}

Result<Bytes> FractalHeap::read_managed(uint64_t offset, uint64_t count) {
  uint64_t block_bytes = first_bytes_;
  uint64_t inside = offset;
  const uint64_t block = HOLDFAST_TRY(find_block(inside, block_bytes));
  if (inside > block_bytes || count > block_bytes - inside) {
    return corrupt("{}: {} has {} bytes at {}, which leave their block", where_, kHeap,
                   count, offset);
  }
  const Bytes* bytes = HOLDFAST_TRY(read_direct(block, block_bytes));
  if (bytes->size() != block_bytes) {
    return corrupt("{}: {} has the block at {} in two sizes", where_, kHeap, block);
  }
  return copy_of(ByteView(*bytes).subspan(inside, count));
}

// The checksum of a direct block is computed with zeros in its own place.
Result<const Bytes*> FractalHeap::read_direct(uint64_t block, uint64_t bytes) {
  if (const auto known = blocks_.find(block); known != blocks_.end()) {
    return &known->second;
  }
  Bytes read = HOLDFAST_TRY(file_.read_block(block, bytes, "FHDB", where_, kHeap));
  const size_t at = 5 + file_.sizes().offset + offset_bytes_;
  if (has_sums_ && read.size() < at + 4) {
    return corrupt("{}: {} has a block of {} bytes; expected more", where_, kHeap,
                   bytes);
  }
  if (has_sums_) {
    const ByteSpan place = ByteSpan(read).subspan(at);
    const auto seen = load_little_endian<uint32_t>(place);
    store_little_endian(uint32_t{0}, place);
    if (const uint32_t expected = lookup3(read); expected != seen) {
      return corrupt(
          "{}: block at {} of the {} has the checksum {:08x}; expected {:08x}", where_,
          block, kHeap, seen, expected);
    }
    store_little_endian(seen, place);
  }
  return &(blocks_[block] = std::move(read));
}

Result<const Bytes*> FractalHeap::read_indirect(uint64_t block, uint64_t bytes) {
  const auto known = blocks_.find(block);
  if (known != blocks_.end() && known->second.size() == bytes) return &known->second;
  Bytes read = HOLDFAST_TRY(file_.read_block(block, bytes, "FHIB", where_, kHeap));
  HOLDFAST_TRY(check_sum(read, where_, "indirect block of a fractal heap"));
  return &(blocks_[block] = std::move(read));
}

uint64_t FractalHeap::row_bytes(uint64_t row) const {
  return row == 0 ? first_bytes_ : first_bytes_ << std::min<uint64_t>(row - 1, 31);
}

uint64_t FractalHeap::row_begin(uint64_t row) const {
  return row == 0 ? 0 : width_ * row_bytes(row);
}

// Returns the address of the direct block, makes `offset` relative to it and sets its
// size.
Result<uint64_t> FractalHeap::find_block(uint64_t& offset,
                                         uint64_t& block_bytes) {
  uint64_t block = root_, rows = root_rows_;
  for (int depth = 0; rows > 0; ++depth) {
    uint64_t row = 0;
    while (row + 1 < rows && row + 1 < 32 && offset >= row_begin(row + 1)) ++row;
    const uint64_t bytes = row_bytes(row);
    const uint64_t column = (offset - row_begin(row)) / bytes;
    if (column >= width_ || depth > kMostIndirect) {
      return corrupt("{}: {} has no block for the offset {}", where_, kHeap, offset);
    }
    offset -= row_begin(row) + column * bytes;
    block = HOLDFAST_TRY(read_child(block, row, column, rows));
    block_bytes = bytes;
    if (bytes <= most_direct_) return block;
    // The rows of an indirect block that spans so many bytes.
    const uint64_t first_row = first_bytes_ * width_;
    rows = bytes >= first_row ? log2_of(bytes) - log2_of(first_row) + 1 : 0;
    if (rows == 0) return corrupt("{}: {} has an empty indirect block", where_, kHeap);
  }
  return block;
}

Result<uint64_t> FractalHeap::read_child(uint64_t block, uint64_t row, uint64_t column,
                                         uint64_t rows) {
  const Sizes sizes = file_.sizes();
  const uint64_t head = 5 + sizes.offset + offset_bytes_;
  const uint64_t bytes = head + rows * width_ * sizes.offset + 4;
  const Bytes* read = HOLDFAST_TRY(read_indirect(block, bytes));
  Cursor cursor = file_.cursor(*read);
  cursor.skip(head + (row * width_ + column) * sizes.offset);
  return cursor.address();
}

}  // namespace holdfast::hdf5
