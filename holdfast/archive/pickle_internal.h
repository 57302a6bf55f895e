// What the reader and the writer of pickles share: opcodes and integers of any size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"
#include "holdfast/state/object.h"

namespace holdfast::pickle {

enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kFloat = 'F',
  kInt = 'I',
  kInstance = 'i',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kLong = 'L',
  kBinInt2 = 'M',
  kNone = 'N',
  kObject = 'o',
  kPersistentText = 'P',
  kBinPersistent = 'Q',
  kReduce = 'R',
  kString = 'S',
  kBinString = 'T',
  kShortBinString = 'U',
  kUnicode = 'V',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kGet = 'g',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kPut = 'p',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinFloat = 'G',
  kProto = 0x80,
  kNewObject = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjectWithKeywords = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
};

// The bytes of a pickle, read from front to back. Error messages name the position of
// the current opcode.
class Program {
 public:
  Program(ByteView bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  std::string_view where() const { return where_; }
  size_t left() const { return bytes_.size() - at_; }
  size_t at() const { return at_; }
  // Whether a read failed because the bytes end before the pickle does.
  bool ran_out() const { return ran_out_; }
  size_t op_at() const { return op_at_; }

  // Reads the next opcode. Messages name its position from now on.
  Result<uint8_t> next() {
    op_at_ = at_;
    return number<uint8_t>();
  }

  // Fails if fewer bytes are left.
  Result<void> check_left(uint64_t count) {
    if (count <= left()) return {};
    ran_out_ = true;
    return broken("needs {} bytes; only {} are left", count, left());
  }

  Result<ByteView> read(uint64_t count) {
    HOLDFAST_TRY(check_left(count));
    const ByteView found = bytes_.subspan(at_, count);
    at_ += count;
    return found;
  }

  template <typename T>
  Result<T> number() {
    return load_little_endian<T>(HOLDFAST_TRY(read(sizeof(T))));
  }

  // Reads a line and returns it without its line feed.
  Result<std::string_view> line() {
    const std::string_view rest = text_of(bytes_.subspan(at_)).substr(0, kMaxLine);
    const size_t end = rest.find('\n');
    if (end == rest.npos) {
      ran_out_ = rest.size() < kMaxLine;
      return broken("a line does not end within {} bytes", rest.size());
    }
    at_ += end + 1;
    return rest.substr(0, end);
  }

  template <typename... Args>
  Error broken(fmt::format_string<Args...> format, Args&&... args) const {
    return corrupt("{}: byte {}: {}", where_, op_at_,
                   fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  static constexpr size_t kMaxLine = 4096;

  const ByteView bytes_;
  const std::string_view where_;
  size_t at_ = 0;
  size_t op_at_ = 0;
  bool ran_out_ = false;
};

// Converts an integer from two's complement, little-endian, in any number of bytes; no
// bytes mean 0.
Object integer_from_bytes(ByteView bytes);
// Converts an optional '-' and decimal digits. Returns nullopt for any other text.
std::optional<Object> integer_from_decimal(std::string_view decimal);
// Converts a decimal number to two's complement in as few bytes as keep the sign.
// Returns nullopt if the text is not a decimal number.
std::optional<Bytes> bytes_of_decimal(std::string_view decimal);
Bytes bytes_of_integer(int64_t value);
// Converts 8 bytes in big-endian order. All other numbers of a pickle are
// little-endian.
double double_from_bytes(ByteView bytes);
// Returns nullopt if the text is not a number, or if other text follows the number.
std::optional<double> double_from_text(std::string_view text);
std::optional<uint32_t> index_from_text(std::string_view text);
// True if protocol 0 writes the text without escapes.
bool is_plain_line(std::string_view text);

}  // namespace holdfast::pickle
