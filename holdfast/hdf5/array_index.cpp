// Fixed and extensible arrays, which index chunks since HDF5 1.10.
//
//   fixed array       header FAHD -> one data block FADB
//   extensible array  header EAHD -> index block EAIB -> data blocks EADB
//                                                     -> super blocks EASB -> EADB
//
// A large data block is cut into pages, each with a checksum of its own. Pages that were
// never written have no valid bytes, and a bit for each page says which were. Super block
// number s has 2^(s/2) data blocks of 2^((s+1)/2) times the fewest elements; the index
// block has the first elements itself and the data blocks of the first super blocks.
#include <bit>
#include <unordered_set>

#include "holdfast/hdf5/chunk_index_internal.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kFixed = "fixed array of chunks";
constexpr std::string_view kExtensible = "extensible array of chunks";
constexpr uint64_t kSumBytes = 4;
// More bits than a number of elements can need in a file.
constexpr uint8_t kMostBits = 48;
constexpr uint8_t kMostPageBits = 32;

// Bits are counted from the highest of the first byte.
bool bit_of(ByteView bits, uint64_t i) {
  return (static_cast<unsigned>(bits[i / 8]) & (0x80U >> i % 8)) != 0;
}

// A run of elements that a block with a checksum has.
struct ElementRun {
  uint64_t first = 0;  // the number of the first element
  uint64_t count = 0;
  uint64_t block = 0;    // the address of the block
  uint64_t skipped = 0;  // the bytes of the block before the elements
};

// What both kinds of arrays share: blocks with checksums, and elements in them.
class ArrayReader {
 public:
  ArrayReader(const File& file, const ArrayKind& kind, const std::string& where,
              std::string_view what, const VisitRecord& visit)
      : file_(file), kind_(kind), where_(where), what_(what), visit_(visit) {}

 protected:
  uint64_t offset_bytes() const { return file_.sizes().offset; }

  // Reads a block that ends with its checksum. Blocks must not overlap, so all together
  // cannot have more bytes than the file.
  Result<Bytes> read_summed(uint64_t address, uint64_t bytes,
                            std::string_view letters) {
    total_ += bytes;
    if (!seen_.insert(address).second ||
        total_ > static_cast<uint64_t>(file_.source()->size())) {
      return corrupt(
          "{}: {} has a block of {} bytes at {} that others overlap or that leaves the "
          "file",
          where_, what_, bytes, address);
    }
    Bytes block =
        HOLDFAST_TRY(file_.read_block(address, bytes, letters, where_, what_));
    HOLDFAST_TRY(check_sum(block, where_, what_));
    return block;
  }

  // Checks version and kind, which follow the letters of each block.
  Result<void> check_kind(Cursor& cursor) const {
    cursor.skip(4);
    const uint8_t version = cursor.u8(), client = cursor.u8();
    if (version == 0 && client == (kind_.filtered ? 1 : 0)) return {};
    return corrupt("{}: {} has the version {} and the kind {}; expected 0 and {}",
                   where_, what_, version, client, kind_.filtered ? 1 : 0);
  }

  Result<void> set_element_bytes(uint8_t bytes) {
    element_bytes_ = bytes;
    if (bytes >= kind_.element_bytes && bytes <= kind_.element_bytes + 8) return {};
    return corrupt("{}: {} has elements of {} bytes; expected {} or some more", where_,
                   what_, bytes, kind_.element_bytes);
  }

  // Checks that a block names the header that leads to it.
  Result<void> check_back(Cursor& cursor, uint64_t header) const {
    const uint64_t back = cursor.address();
    if (back == header) return {};
    return corrupt("{}: {} has a block of the header at {}; expected {}", where_, what_,
                   back, header);
  }

  Result<void> visit_elements(const ElementRun& run, ByteView block) const {
    IndexRecord record{.block = run.block, .block_bytes = block.size()};
    for (uint64_t i = 0; i < run.count; ++i) {
      const uint64_t at = run.skipped + i * element_bytes_;
      record.number = run.first + i;
      record.bytes = block.subspan(at, element_bytes_);
      record.address = run.block + at;
      HOLDFAST_TRY(visit_(record));
    }
    return {};
  }

  Result<void> visit_page(uint64_t address, uint64_t first, uint64_t count) {
    const Bytes page =
        HOLDFAST_TRY(read_summed(address, count * element_bytes_ + kSumBytes, ""));
    return visit_elements({.first = first, .count = count, .block = address}, page);
  }

  const File& file_;
  const ArrayKind kind_;
  const std::string& where_;
  const std::string_view what_;
  const VisitRecord& visit_;
  uint64_t element_bytes_ = 0;
  std::unordered_set<uint64_t> seen_;
  uint64_t total_ = 0;
};

class FixedArray : public ArrayReader {
 public:
  using ArrayReader::ArrayReader;

  Result<void> visit_all(uint64_t header) {
    const uint64_t bytes = 12 + offset_bytes() + file_.sizes().length;
    const Bytes head = HOLDFAST_TRY(read_summed(header, bytes, "FAHD"));
    Cursor cursor = file_.cursor(head);
    HOLDFAST_TRY(check_kind(cursor));
    HOLDFAST_TRY(set_element_bytes(cursor.u8()));
    const uint8_t page_bits = cursor.u8();
    count_ = cursor.length();
    const uint64_t block = cursor.address();
    if (page_bits > kMostPageBits || count_ >> kMostBits != 0) {
      return corrupt("{}: {} has {} elements in pages of 2^{}; expected fewer", where_,
                     what_, count_, page_bits);
    }
    page_ = uint64_t{1} << page_bits;
    if (block == kUndefined) return {};
    return count_ > page_ ? visit_pages(header, block) : visit_block(header, block);
  }

 private:
  uint64_t prefix() const { return 6 + offset_bytes(); }

  Result<void> visit_block(uint64_t header, uint64_t address) {
    const uint64_t bytes = prefix() + count_ * element_bytes_ + kSumBytes;
    const Bytes block = HOLDFAST_TRY(read_summed(address, bytes, "FADB"));
    Cursor cursor = file_.cursor(block);
    HOLDFAST_TRY(check_kind(cursor));
    HOLDFAST_TRY(check_back(cursor, header));
    return visit_elements({.count = count_, .block = address, .skipped = prefix()},
                          block);
  }

  Result<void> visit_pages(uint64_t header, uint64_t address) {
    const uint64_t pages = (count_ + page_ - 1) / page_, bits = (pages + 7) / 8;
    const uint64_t bytes = prefix() + bits + kSumBytes;
    const Bytes block = HOLDFAST_TRY(read_summed(address, bytes, "FADB"));
    Cursor cursor = file_.cursor(block);
    HOLDFAST_TRY(check_kind(cursor));
    HOLDFAST_TRY(check_back(cursor, header));
    const ByteView written = cursor.take(bits);
    const uint64_t step = page_ * element_bytes_ + kSumBytes;
    for (uint64_t i = 0; i < pages; ++i) {
      if (!bit_of(written, i)) continue;
      HOLDFAST_TRY(visit_page(address + bytes + i * step, i * page_,
                              std::min(page_, count_ - i * page_)));
    }
    return {};
  }

  uint64_t count_ = 0;
  uint64_t page_ = 0;  // elements of a page
};

class ExtensibleArray : public ArrayReader {
 public:
  using ArrayReader::ArrayReader;

  Result<void> visit_all(uint64_t header) {
    header_ = header;
    const uint64_t bytes = 16 + 6 * uint64_t{file_.sizes().length} + offset_bytes();
    const Bytes head = HOLDFAST_TRY(read_summed(header, bytes, "EAHD"));
    Cursor cursor = file_.cursor(head);
    HOLDFAST_TRY(check_kind(cursor));
    HOLDFAST_TRY(set_element_bytes(cursor.u8()));
    const uint8_t bits = cursor.u8();
    inline_ = cursor.u8();
    fewest_ = cursor.u8();
    const uint64_t pointers = cursor.u8();
    const uint8_t page_bits = cursor.u8();
    cursor.skip(6 * uint64_t{file_.sizes().length});
    const uint64_t index = cursor.address();
    const bool fits = bits <= kMostBits && page_bits <= kMostPageBits &&
                      std::has_single_bit(fewest_) && std::has_single_bit(pointers) &&
                      bits >= log2_of(fewest_);
    page_ = uint64_t{1} << std::min(page_bits, kMostPageBits);
    direct_ = 2 * log2_of(pointers | 1);
    // The data blocks that the index block has are never cut into pages.
    if (!fits || (direct_ > 0 && elements_of(direct_ - 1) > page_)) {
      return corrupt(
          "{}: {} has 2^{} elements in blocks of {} or more and pages of 2^{}; expected "
          "powers of two",
          where_, what_, bits, fewest_, page_bits);
    }
    number_bytes_ = (bits + 7U) / 8;
    super_blocks_ = 1 + bits - log2_of(fewest_);
    direct_ = std::min(direct_, super_blocks_);
    return index == kUndefined ? Result<void>() : visit_index(index);
  }

 private:
  static uint64_t log2_of(uint64_t value) {
    return static_cast<uint64_t>(std::bit_width(value)) - 1;
  }
  static uint64_t blocks_of(uint64_t super) { return uint64_t{1} << super / 2; }
  uint64_t elements_of(uint64_t super) const { return fewest_ << (super + 1) / 2; }

  Result<void> visit_index(uint64_t address) {
    uint64_t blocks = 0;
    for (uint64_t s = 0; s < direct_; ++s) blocks += blocks_of(s);
    const uint64_t skipped = 6 + offset_bytes();
    const uint64_t addresses = blocks + (super_blocks_ - direct_);
    const uint64_t bytes = skipped + inline_ * element_bytes_ +
                           addresses * offset_bytes() + kSumBytes;
    const Bytes block = HOLDFAST_TRY(read_summed(address, bytes, "EAIB"));
    Cursor cursor = file_.cursor(block);
    HOLDFAST_TRY(check_kind(cursor));
    HOLDFAST_TRY(check_back(cursor, header_));
    cursor.skip(inline_ * element_bytes_);
    HOLDFAST_TRY(visit_elements(
        {.count = inline_, .block = address, .skipped = skipped}, block));
    uint64_t first = inline_;
    for (uint64_t s = 0; s < super_blocks_; ++s) {
      HOLDFAST_TRY(s < direct_ ? visit_blocks(cursor, s, first, {})
                               : visit_super(cursor.address(), s, first));
      first += blocks_of(s) * elements_of(s);
    }
    return {};
  }

  // Visits the data blocks of a super block, whose addresses come next. `written` has a
  // bit for each page of each block.
  Result<void> visit_blocks(Cursor& cursor, uint64_t super, uint64_t first,
                            ByteView written) {
    const uint64_t count = elements_of(super), pages = count > page_ ? count / page_ : 0;
    for (uint64_t i = 0; i < blocks_of(super); ++i, first += count) {
      const uint64_t address = cursor.address();
      if (address == kUndefined) continue;
      HOLDFAST_TRY(visit_block(address, first, count, pages, written, i * pages));
    }
    return {};
  }

  // `written` are the bits of pages; those of this block begin at `bit`.
  Result<void> visit_block(uint64_t address, uint64_t first, uint64_t count,
                           uint64_t pages, ByteView written, uint64_t bit) {
    const uint64_t skipped = 6 + offset_bytes() + number_bytes_;
    const uint64_t inside = pages == 0 ? count * element_bytes_ : 0;
    const uint64_t bytes = skipped + inside + kSumBytes;
    const Bytes block = HOLDFAST_TRY(read_summed(address, bytes, "EADB"));
    Cursor cursor = file_.cursor(block);
    HOLDFAST_TRY(check_kind(cursor));
    HOLDFAST_TRY(check_back(cursor, header_));
    if (pages == 0) {
      return visit_elements(
          {.first = first, .count = count, .block = address, .skipped = skipped},
          block);
    }
    const uint64_t step = page_ * element_bytes_ + kSumBytes;
    for (uint64_t i = 0; i < pages; ++i) {
      if (!bit_of(written, bit + i)) continue;
      HOLDFAST_TRY(visit_page(address + bytes + i * step, first + i * page_, page_));
    }
    return {};
  }

  Result<void> visit_super(uint64_t address, uint64_t super, uint64_t first) {
    if (address == kUndefined) return {};
    const uint64_t count = elements_of(super), pages = count > page_ ? count / page_ : 0;
    const uint64_t bits = blocks_of(super) * ((pages + 7) / 8);
    const uint64_t bytes = 6 + offset_bytes() + number_bytes_ + bits +
                           blocks_of(super) * offset_bytes() + kSumBytes;
    const Bytes block = HOLDFAST_TRY(read_summed(address, bytes, "EASB"));
    Cursor cursor = file_.cursor(block);
    HOLDFAST_TRY(check_kind(cursor));
    HOLDFAST_TRY(check_back(cursor, header_));
    cursor.skip(number_bytes_);
    const ByteView written = cursor.take(bits);
    return visit_blocks(cursor, super, first, written);
  }

  uint64_t header_ = 0;
  uint64_t inline_ = 0;        // elements in the index block
  uint64_t fewest_ = 0;        // elements of the smallest data block
  uint64_t page_ = 0;          // elements of a page
  uint64_t number_bytes_ = 0;  // of the number of the first element of a block
  uint64_t super_blocks_ = 0;
  uint64_t direct_ = 0;  // super blocks whose data blocks the index block has
};

}  // namespace

Result<void> visit_fixed_array(const File& file, uint64_t header, const ArrayKind& kind,
                               const std::string& where, const VisitRecord& visit) {
  return FixedArray(file, kind, where, kFixed, visit).visit_all(header);
}

Result<void> visit_extensible_array(const File& file, uint64_t header,
                                    const ArrayKind& kind, const std::string& where,
                                    const VisitRecord& visit) {
  return ExtensibleArray(file, kind, where, kExtensible, visit).visit_all(header);
}

}  // namespace holdfast::hdf5
