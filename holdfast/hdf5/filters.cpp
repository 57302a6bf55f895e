#include <algorithm>
#include <array>

#include "holdfast/base/deflate.h"
#include "holdfast/hdf5/filters_internal.h"
#include "holdfast/hdf5/lzf.h"

namespace holdfast::hdf5 {
namespace {

constexpr std::string_view kFilterMessage = "filter message";
// HDF5 allows no more.
constexpr int kMostFilters = 32;
constexpr size_t kSumBytes = 4;

struct NamedFilter {
  int id;
  std::string_view name;
};
constexpr std::array kForeignFilters{
    NamedFilter{4, "szip"},           NamedFilter{5, "nbit"},
    NamedFilter{6, "scaleoffset"},    NamedFilter{32001, "blosc"},
    NamedFilter{32004, "lz4"},        NamedFilter{32008, "bitshuffle"},
    NamedFilter{32015, "zstd"},       NamedFilter{32026, "blosc2"},
};

bool compresses(FilterId id) { return id == FilterId::kDeflate || id == FilterId::kLzf; }

Result<void> check_known(int id, const std::string& where) {
  if ((id >= 1 && id <= 3) || id == static_cast<int>(FilterId::kLzf)) return {};
  const auto found = std::ranges::find(kForeignFilters, id, &NamedFilter::id);
  return unsupported(
      "{} has the filter {} ({}); expected deflate, lzf, shuffle or fletcher32",
      where, id, found == kForeignFilters.end() ? "not known here" : found->name);
}

// Elements of a size that the compiler knows are put together in registers.
template <size_t element>
void unshuffle(const std::byte* from, size_t count, std::byte* into) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t b = 0; b < element; ++b) into[i * element + b] = from[b * count + i];
  }
}

Bytes unshuffled(ByteView from, uint64_t element) {
  const size_t count = from.size() / element;
  Bytes into(from.size());
  if (element == 2) {
    unshuffle<2>(from.data(), count, into.data());
  } else if (element == 4) {
    unshuffle<4>(from.data(), count, into.data());
  } else if (element == 8) {
    unshuffle<8>(from.data(), count, into.data());
  } else {
    for (size_t b = 0; b < element; ++b) {
      for (size_t i = 0; i < count; ++i) into[i * element + b] = from[b * count + i];
    }
  }
  const size_t rest = count * element;  // bytes after the last whole element
  std::copy(from.begin() + static_cast<std::ptrdiff_t>(rest), from.end(),
            into.begin() + static_cast<std::ptrdiff_t>(rest));
  return into;
}

Bytes shuffled(ByteView from, uint64_t element) {
  const size_t count = from.size() / element;
  Bytes into(from.begin(), from.end());
  for (size_t b = 0; b < element; ++b) {
    for (size_t i = 0; i < count; ++i) into[b * count + i] = from[i * element + b];
  }
  return into;
}

// Checks and removes the sum at the end. Old versions of HDF5 on little-endian machines
// stored it with the bytes of each half swapped, and readers accept both.
Result<Bytes> without_sum(Bytes stored) {
  const auto seen = load_little_endian<uint32_t>(ByteView(stored).last(kSumBytes));
  stored.erase(stored.end() - static_cast<std::ptrdiff_t>(kSumBytes), stored.end());
  const uint32_t expected = fletcher32(stored);
  const uint32_t old = (expected & 0x00ff00ff) << 8 | (expected >> 8 & 0x00ff00ff);
  // Sums are modulo 65535, in which 0 and 65535 are the same.
  const auto is_same = [](uint32_t a, uint32_t b) {
    return (a & 0xffff) % 65535 == (b & 0xffff) % 65535 &&
           (a >> 16) % 65535 == (b >> 16) % 65535;
  };
  if (is_same(seen, expected) || is_same(seen, old)) return stored;
  return corrupt("has the fletcher32 {:08x}; expected {:08x}", seen, expected);
}

// The size of a chunk's bytes before filter i is applied, if no earlier filter
// compresses.
int64_t size_before(const Filters& filters, uint32_t mask, size_t i, int64_t bytes) {
  for (size_t k = 0; k < i; ++k) {
    if (is_applied(mask, k) && filters[k].id == FilterId::kFletcher32) {
      bytes += kSumBytes;
    }
  }
  return bytes;
}

Result<Filter> read_filter(Cursor& cursor, int version, const std::string& where) {
  const uint16_t id = cursor.u16();
  const uint16_t name = version == 1 || id >= 256 ? cursor.u16() : uint16_t{0};
  cursor.skip(2);
  const uint16_t values = cursor.u16();
  cursor.skip(version == 1 ? (name + uint64_t{7}) / 8 * 8 : name);
  Filter filter{.id = static_cast<FilterId>(id)};
  for (uint16_t i = 0; i < values && !cursor.cut(); ++i) {
    const uint32_t value = cursor.u32();
    if (i == 0 && filter.id == FilterId::kShuffle) filter.element_bytes = value;
  }
  if (version == 1 && values % 2 != 0) cursor.skip(4);
  HOLDFAST_TRY(cursor.check(where, kFilterMessage));
  HOLDFAST_TRY(check_known(id, where));
  if (filter.element_bytes == 0) {
    return corrupt("{}: {} shuffles elements of 0 bytes", where, kFilterMessage);
  }
  return filter;
}

}  // namespace

uint32_t fletcher32(ByteView bytes) {
  uint32_t low = 0, high = 0;
  const auto fold = [](uint32_t sum) { return (sum & 0xffff) + (sum >> 16); };
  const size_t words = bytes.size() / 2;
  for (size_t i = 0; i < words;) {
    // So many words cannot overflow the sums.
    const size_t end = std::min(words, i + 360);
    for (; i < end; ++i) {
      low += static_cast<uint32_t>(bytes[2 * i]) << 8 |
             static_cast<uint32_t>(bytes[2 * i + 1]);
      high += low;
    }
    low = fold(low), high = fold(high);
  }
  if (bytes.size() % 2 != 0) {
    low += static_cast<uint32_t>(bytes.back()) << 8;
    high += low;
    low = fold(low), high = fold(high);
  }
  return fold(high) << 16 | fold(low);
}

Result<Filters> read_filters(const File& file, ByteView data,
                             const std::string& where) {
  Cursor cursor = file.cursor(data);
  const uint8_t version = cursor.u8(), count = cursor.u8();
  if (version == 1) cursor.skip(6);
  HOLDFAST_TRY(cursor.check(where, kFilterMessage));
  if (version < 1 || version > 2 || count > kMostFilters) {
    return corrupt(
        "{}: {} has version {} and {} filters; expected 1 or 2 and at most {}", where,
        kFilterMessage, version, count, kMostFilters);
  }
  Filters filters;
  for (uint8_t i = 0; i < count; ++i) {
    filters.push_back(HOLDFAST_TRY(read_filter(cursor, version, where)));
  }
  if (std::ranges::count_if(filters, compresses, &Filter::id) > 1) {
    return unsupported("{} is compressed twice; expected one filter that compresses",
                       where);
  }
  return filters;
}

bool has_check(const Filters& filters, uint32_t mask) {
  for (size_t i = 0; i < filters.size(); ++i) {
    const bool checks =
        filters[i].id == FilterId::kDeflate || filters[i].id == FilterId::kFletcher32;
    if (checks && is_applied(mask, i)) return true;
  }
  return false;
}

Result<void> check_stored_size(const Filters& filters, uint32_t mask, int64_t stored,
                               int64_t bytes) {
  const int64_t sums = size_before(filters, mask, filters.size(), 0);
  for (size_t i = 0; i < filters.size(); ++i) {
    if (!is_applied(mask, i) || !compresses(filters[i].id)) continue;
    const bool lzf = filters[i].id == FilterId::kLzf;
    if (stored > sums && bytes <= (lzf ? most_lzf(stored) : most_inflated(stored))) {
      return {};
    }
    return corrupt("has {} stored bytes for {}; no {} stream is so short", stored,
                   bytes, lzf ? "lzf" : "deflate");
  }
  if (stored == bytes + sums) return {};
  return corrupt("has {} stored bytes; expected {}", stored, bytes + sums);
}

Result<Bytes> decode_chunk(const Filters& filters, uint32_t mask, Bytes stored,
                           int64_t bytes) {
  for (size_t i = filters.size(); i > 0; --i) {
    const Filter& filter = filters[i - 1];
    if (!is_applied(mask, i - 1)) continue;
    switch (filter.id) {
      case FilterId::kFletcher32:
        if (stored.size() < kSumBytes) return corrupt("has no room for a fletcher32");
        stored = HOLDFAST_TRY(without_sum(std::move(stored)));
        break;
      case FilterId::kDeflate:
        stored = HOLDFAST_TRY(inflate(stored, size_before(filters, mask, i - 1, bytes),
                                      DeflateWrapper::kZlib));
        break;
      case FilterId::kLzf:
        stored = HOLDFAST_TRY(
            decompress_lzf(stored, size_before(filters, mask, i - 1, bytes)));
        break;
      case FilterId::kShuffle: stored = unshuffled(stored, filter.element_bytes); break;
    }
  }
  if (std::ssize(stored) == bytes) return stored;
  return corrupt("has {} bytes; expected {}", stored.size(), bytes);
}

Bytes encode_chunk(const Filters& filters, uint32_t mask, ByteView elements,
                   const Bytes* sums_of) {
  Bytes bytes = copy_of(elements);
  // The bytes at the same stage of the elements whose checksums are kept.
  Bytes old = sums_of == nullptr ? bytes : *sums_of;
  const auto append_sum = [](Bytes& to, uint32_t sum) {
    to.resize(to.size() + kSumBytes);
    store_little_endian(sum, ByteSpan(to).last(kSumBytes));
  };
  for (size_t i = 0; i < filters.size(); ++i) {
    if (!is_applied(mask, i)) continue;
    if (filters[i].id == FilterId::kShuffle) {
      bytes = shuffled(bytes, filters[i].element_bytes);
      old = shuffled(old, filters[i].element_bytes);
    } else if (filters[i].id == FilterId::kFletcher32) {
      const uint32_t sum = fletcher32(old);
      append_sum(bytes, sum);
      append_sum(old, sum);
    } else if (filters[i].id == FilterId::kLzf) {
      bytes = compress_lzf(bytes);
      old = compress_lzf(old);
    } else {
      bytes = deflate(bytes, DeflateWrapper::kZlib);
      if (sums_of != nullptr) {
        old = deflate(old, DeflateWrapper::kZlib);
        std::copy(old.end() - 4, old.end(), bytes.end() - 4);  // the Adler-32
      } else {
        old = bytes;
      }
    }
  }
  return bytes;
}

}  // namespace holdfast::hdf5
