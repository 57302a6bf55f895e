#include "holdfast/hdf5/lzf.h"

#include <algorithm>
#include <vector>

namespace holdfast::hdf5 {
namespace {

constexpr size_t kMostPlain = 32;      // bytes that follow as they are
constexpr size_t kMostBack = 1 << 13;  // how far back a repetition begins
constexpr size_t kLeastLength = 3;     // of a repetition
constexpr size_t kMostLength = 264;
constexpr int kHashBits = 14;

uint32_t byte_at(ByteView bytes, size_t i) { return static_cast<uint32_t>(bytes[i]); }

uint32_t hash_of(ByteView bytes, size_t i) {
  const uint32_t three =
      byte_at(bytes, i) << 16 | byte_at(bytes, i + 1) << 8 | byte_at(bytes, i + 2);
  return three * 2654435761U >> (32 - kHashBits);
}

void append_plain(Bytes& to, ByteView bytes) {
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kMostPlain);
    to.push_back(static_cast<std::byte>(count - 1));
    to.insert(to.end(), bytes.begin(), bytes.begin() + static_cast<int64_t>(count));
    bytes = bytes.subspan(count);
  }
}

void append_repetition(Bytes& to, size_t length, size_t back) {
  const size_t coded = length - 2, distance = back - 1;
  to.push_back(static_cast<std::byte>(std::min<size_t>(coded, 7) << 5 | distance >> 8));
  if (coded >= 7) to.push_back(static_cast<std::byte>(coded - 7));
  to.push_back(static_cast<std::byte>(distance & 0xff));
}

}  // namespace

// A repetition of 264 bytes takes 3.
int64_t most_lzf(int64_t stored) {
  constexpr int64_t kMost = kMostLength / 3;
  return stored > INT64_MAX / kMost ? INT64_MAX : stored * kMost;
}

Result<Bytes> decompress_lzf(ByteView stored, int64_t bytes) {
  const auto whole = static_cast<size_t>(bytes);
  const auto broken = [&](size_t at) {
    return corrupt("the lzf stream is wrong at byte {}; expected {} bytes from it", at,
                   whole);
  };
  Bytes into;
  into.reserve(whole);
  for (size_t at = 0; at < stored.size();) {
    const size_t begin = at;
    const uint32_t head = byte_at(stored, at++);
    if (head < kMostPlain) {
      const size_t count = head + 1;
      if (count > stored.size() - at || count > whole - into.size()) {
        return broken(begin);
      }
      const auto from = stored.begin() + static_cast<int64_t>(at);
      into.insert(into.end(), from, from + static_cast<int64_t>(count));
      at += count;
      continue;
    }
    size_t length = (head >> 5) + 2;
    if (stored.size() - at < (head >> 5 == 7 ? 2U : 1U)) return broken(begin);
    if (head >> 5 == 7) length += byte_at(stored, at++);
    const size_t back = ((head & 31) << 8 | byte_at(stored, at++)) + 1;
    if (back > into.size() || length > whole - into.size()) return broken(begin);
    // The bytes may overlap those that they make.
    for (size_t i = 0; i < length; ++i) into.push_back(into[into.size() - back]);
  }
  return into.size() == whole ? Result<Bytes>(std::move(into)) : broken(stored.size());
}

Bytes compress_lzf(ByteView bytes) {
  constexpr size_t kNowhere = SIZE_MAX;
  std::vector<size_t> last(size_t{1} << kHashBits, kNowhere);
  Bytes into;
  size_t plain = 0;  // the first byte that is not written yet
  for (size_t i = 0; i + kLeastLength <= bytes.size();) {
    size_t& known = last[hash_of(bytes, i)];
    const size_t from = known;
    known = i;
    size_t length = 0;
    if (from != kNowhere && i - from <= kMostBack) {
      const size_t most = std::min(kMostLength, bytes.size() - i);
      while (length < most && bytes[from + length] == bytes[i + length]) ++length;
    }
    if (length < kLeastLength) {
      ++i;
      continue;
    }
    append_plain(into, bytes.subspan(plain, i - plain));
    append_repetition(into, length, i - from);
    i += length;
    plain = i;
  }
  append_plain(into, bytes.subspan(plain));
  return into;
}

}  // namespace holdfast::hdf5
