// Constants of the zip format that its reader and writer share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"

namespace holdfast::zip {

inline constexpr uint32_t kLocalMark = 0x04034b50;
inline constexpr uint32_t kDescriptorMark = 0x08074b50;
inline constexpr uint32_t kCentralMark = 0x02014b50;
inline constexpr uint32_t kEnd64Mark = 0x06064b50;
inline constexpr uint32_t kLocator64Mark = 0x07064b50;
inline constexpr uint32_t kEndMark = 0x06054b50;

// The size of each structure without names, extra fields and comments.
inline constexpr int64_t kLocalBytes = 30;
inline constexpr int64_t kCentralBytes = 46;
inline constexpr int64_t kEnd64Bytes = 56;
inline constexpr int64_t kLocator64Bytes = 20;
inline constexpr int64_t kEndBytes = 22;

// The offset of the CRC in a local header and in a central one.
inline constexpr int64_t kLocalCrc = 14;
inline constexpr int64_t kCentralCrc = 16;

inline constexpr uint16_t kStored = 0;
inline constexpr uint16_t kDeflated = 8;

inline constexpr uint16_t kEncrypted = 1;
inline constexpr uint16_t kHasDescriptor = 1 << 3;
inline constexpr uint16_t kUtf8Names = 1 << 11;

inline constexpr uint16_t kZip64Extra = 0x0001;
// The id of torch's padding field: "FB" in the file.
inline constexpr uint16_t kPaddingExtra = 0x4246;

// These values mean that the true value is in the zip64 field.
inline constexpr uint32_t kIn64 = 0xffffffff;
inline constexpr uint16_t kIn64Short = 0xffff;

// What the records at the end of an archive say about its directory.
struct Ends {
  int64_t entries = 0;
  int64_t offset = 0;
  int64_t size = 0;
  int64_t zip64_from = kIn64;  // values from this one on are only in the zip64 record
};
// The records that end an archive. The zip64 record is always there, as torch has it.
Bytes end_records(const Ends& ends);

// Collects the fields of a header.
class Header {
 public:
  Header& u16(uint64_t value) { return number(static_cast<uint16_t>(value)); }
  Header& u32(uint64_t value) { return number(static_cast<uint32_t>(value)); }
  Header& u64(int64_t value) { return number(static_cast<uint64_t>(value)); }
  Header& text(std::string_view text) {
    const ByteView bytes = bytes_of(text);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Header& fill(size_t count, char with) { return text(std::string(count, with)); }
  const Bytes& bytes() const { return bytes_; }

 private:
  template <typename T>
  Header& number(T value) {
    bytes_.resize(bytes_.size() + sizeof(T));
    store_little_endian(value, ByteSpan(bytes_).last(sizeof(T)));
    return *this;
  }
  Bytes bytes_;
};

// Records begin at multiples of this, so that they can be mapped into memory and used
// there.
inline constexpr int64_t kAlignment = 64;

}  // namespace holdfast::zip
