// Reads the .idx file of Megatron-LM's indexed datasets:
//
//   "MMIDIDX\0\0", version 1 (u64), code of the dtype (u8)
//   number of sequences (u64), number of documents + 1 (u64)
//   for each sequence its number of tokens (i32), then for each the byte where it begins
//   in the .bin file (i64)
//   for each document its first sequence, then the number of sequences (i64)
//   in some files a mode for each sequence (i8), which is not used here
#include <algorithm>
#include <type_traits>

#include "holdfast/dataset/sample_table.h"
#include "holdfast/state/tensor.h"

namespace holdfast {
namespace {

constexpr std::string_view kTableMark{"MMIDIDX\0\0", 9};
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
// By the code in the file. Code 0 is none.
constexpr std::string_view kDtypes[] = {"",    "U8",  "I8",  "I16", "I32",
                                        "I64", "F64", "F32", "U16"};
// How many numbers of a table are read at a time.
constexpr int64_t kChunk = 1 << 16;

struct TableHeader {
  int64_t dtype = 0;
  int64_t item_bytes = 0;
  int64_t sequences = 0;
  int64_t documents = 0;
};

Result<TableHeader> read_table_header(ScannedFile& idx) {
  if (idx.size() < kHeaderBytes) {
    return corrupt("{}: {} bytes; expected the header of a Megatron index, of {}",
                   idx.name(), idx.size(), kHeaderBytes);
  }
  const Bytes bytes = HOLDFAST_TRY(idx.exactly(kHeaderBytes));
  const ByteView view(bytes);
  if (!text_of(view).starts_with(kTableMark)) {
    return corrupt("{}: byte 0 does not begin a Megatron index; expected \"MMIDIDX\"",
                   idx.name());
  }
  const auto version = load_little_endian<uint64_t>(view.subspan(9));
  if (version != 1) {
    return unsupported("{}: version {} of Megatron's index; expected 1", idx.name(), version);
  }
  TableHeader header{.dtype = static_cast<int64_t>(view[17])};
  if (megatron_dtype(header.dtype).empty()) {
    return corrupt("{}: byte 17 has the dtype {}; expected 1 to 8", idx.name(), header.dtype);
  }
  header.item_bytes = bytes_of(HOLDFAST_TRY(parse_dtype(megatron_dtype(header.dtype))));
  const auto sequences = load_little_endian<uint64_t>(view.subspan(18));
  const auto bounds = load_little_endian<uint64_t>(view.subspan(26));
  const auto most = static_cast<uint64_t>(idx.size());
  const bool fits = sequences < most && bounds >= 1 && bounds <= most &&
                    sequences * 12 + bounds * 8 <= most - kHeaderBytes;
  if (!fits) {
    return corrupt("{}: byte 18 says {} sequences and {} bounds of documents; the file has "
                   "{} bytes",
                   idx.name(), sequences, bounds, idx.size());
  }
  header.sequences = static_cast<int64_t>(sequences);
  header.documents = static_cast<int64_t>(bounds) - 1;
  return header;
}

// Calls `use` with each of the next `count` little-endian numbers and its place.
template <typename T, typename Use>
Result<void> each_number(ScannedFile& idx, int64_t count, const Use& use) {
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t some = std::min(kChunk, count - first);
    const Bytes bytes =
        HOLDFAST_TRY(idx.exactly(some * static_cast<int64_t>(sizeof(T))));
    for (int64_t i = 0; i < some; ++i) {
      const ByteView at = ByteView(bytes).subspan(static_cast<size_t>(i) * sizeof(T));
      HOLDFAST_TRY(use(first + i, static_cast<std::make_signed_t<T>>(
                                      load_little_endian<T>(at))));
    }
  }
  return {};
}

// Where each sequence begins in the .bin file, then where the last one ends.
Result<std::vector<int64_t>> read_bounds(ScannedFile& idx, const TableHeader& header,
                                         int64_t bin_bytes) {
  std::vector<int64_t> bounds{0};
  bounds.reserve(static_cast<size_t>(header.sequences) + 1);
  HOLDFAST_TRY(each_number<uint32_t>(
      idx, header.sequences, [&](int64_t sequence, int64_t tokens) -> Result<void> {
        const int64_t room = (bin_bytes - bounds.back()) / header.item_bytes;
        if (tokens < 0 || tokens > room) {
          return corrupt(
              "{}: sequence {} has {} tokens; the .bin file of {} bytes has room for {}",
              idx.name(), sequence, tokens, bin_bytes, room);
        }
        bounds.push_back(bounds.back() + tokens * header.item_bytes);
        return {};
      }));
  HOLDFAST_TRY(each_number<uint64_t>(
      idx, header.sequences, [&](int64_t sequence, int64_t begin) -> Result<void> {
        const int64_t want = bounds[static_cast<size_t>(sequence)];
        if (begin == want) return {};
        return corrupt("{}: sequence {} begins at byte {} of the .bin file; expected {}, "
                       "where the one before it ends",
                       idx.name(), sequence, begin, want);
      }));
  if (bounds.back() != bin_bytes) {
    return corrupt("{}: the sequences end at byte {} of the .bin file; it has {} bytes",
                   idx.name(), bounds.back(), bin_bytes);
  }
  return bounds;
}

}  // namespace

std::string_view megatron_dtype(int64_t code) {
  return code >= 0 && code < std::ssize(kDtypes) ? kDtypes[code] : "";
}

Result<int64_t> scan_megatron(ScannedFile& idx, int64_t bin_bytes,
                              const AppendWord& append) {
  const TableHeader header = HOLDFAST_TRY(read_table_header(idx));
  const std::vector<int64_t> bounds = HOLDFAST_TRY(read_bounds(idx, header, bin_bytes));
  int64_t before = 0;
  HOLDFAST_TRY(each_number<uint64_t>(
      idx, header.documents + 1, [&](int64_t document, int64_t sequence) -> Result<void> {
        const bool is_last = document == header.documents;
        if (sequence < before || sequence > header.sequences ||
            (is_last && sequence != header.sequences) || (document == 0 && sequence != 0)) {
          return corrupt("{}: document {} begins with sequence {}; expected at least {}, of "
                         "{} in all",
                         idx.name(), document, sequence, before, header.sequences);
        }
        before = sequence;
        return append(bounds[static_cast<size_t>(sequence)]);
      }));
  return header.dtype;
}

}  // namespace holdfast
