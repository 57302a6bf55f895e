// Reads the numbers of one structure of an HDF5 file from front to back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"

namespace holdfast::hdf5 {

// An address that points nowhere: all bits are ones.
inline constexpr uint64_t kUndefined = UINT64_MAX;

inline int64_t signed_of(uint64_t value) { return static_cast<int64_t>(value); }

// How many bytes the addresses and the lengths of a file have.
struct Sizes {
  uint8_t offset = 8;
  uint8_t length = 8;
};

// A read past the end gives zeros and is remembered, so that a parser can read all
// fields first and ask once with check(). A loop over fields must ask cut() too, if its
// count comes from the file.
class Cursor {
 public:
  Cursor(ByteView bytes, Sizes sizes) : bytes_(bytes), sizes_(sizes) {}

  // A little-endian number of at most 8 bytes.
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    const ByteView taken = take(bytes);
    for (size_t i = taken.size(); i > 0; --i) {
      value = value << 8 | static_cast<uint64_t>(taken[i - 1]);
    }
    return value;
  }
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t length() { return number(sizes_.length); }
  uint64_t address() {
    const uint64_t value = number(sizes_.offset);
    const bool ones =
        sizes_.offset < 8 && value == (uint64_t{1} << 8 * sizes_.offset) - 1;
    return ones ? kUndefined : value;
  }

  // The next bytes; none of them if there are fewer.
  ByteView take(uint64_t count) {
    if (cut_ || count > left()) {
      cut_ = true;
      return {};
    }
    const ByteView taken = bytes_.subspan(at_, static_cast<size_t>(count));
    at_ += taken.size();
    return taken;
  }
  void skip(uint64_t count) { (void)take(count); }
  // Skips to a multiple of 8, counted from the first byte of the cursor.
  void align() { skip((8 - at_ % 8) % 8); }
  // The text up to the next zero byte, which is skipped.
  std::string_view text() {
    const std::string_view rest = text_of(bytes_.subspan(at_));
    const size_t end = rest.find('\0');
    cut_ = cut_ || end == rest.npos;
    if (cut_) return {};
    at_ += end + 1;
    return rest.substr(0, end);
  }

  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }
  bool cut() const { return cut_; }
  Sizes sizes() const { return sizes_; }

  // Fails with kCorrupt if something was read past the end. `where` names the object
  // and `what` the structure.
  Result<void> check(std::string_view where, std::string_view what) const {
    if (!cut_) return {};
    return corrupt("{}: {} has only {} bytes; expected more", where, what,
                   bytes_.size());
  }

 private:
  ByteView bytes_;
  Sizes sizes_;
  size_t at_ = 0;
  bool cut_ = false;
};

}  // namespace holdfast::hdf5
