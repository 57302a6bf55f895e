// Writes pickles of protocol 2, in the opcodes that torch.load(weights_only=True) knows.
//
// The caller gives the program in order: a dict is begin_dict(), key, value, key, value,
// ..., end_dict(). Names of functions are kept in the memo, other values are not shared.
// Not thread safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "holdfast/base/bytes.h"

namespace holdfast {

class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(bool value);
  void integer(int64_t value);
  void number(double value);
  // kInvalid if it is no decimal number, kUnsupported if it needs more than 255 bytes.
  Result<void> big_integer(std::string_view decimal);
  // kInvalid if it is not UTF-8 or 4 GiB long.
  Result<void> text(std::string_view text);
  // As the call of _codecs.encode that Python writes; kInvalid if it is 2 GiB long.
  Result<void> bytes(ByteView bytes);

  // For items of the dict on top of the stack, which end_dict() ends.
  void mark();
  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();

  // "torch._utils", "_rebuild_tensor_v2".
  void global(std::string_view module, std::string_view name);
  // Calls the global below the tuple on top of the stack.
  void call();
  // Makes an object from outside of the tuple on top of the stack.
  void persistent();

  Bytes finish() &&;

 private:
  void op(uint8_t code);
  template <typename T>
  void op_number(uint8_t code, T value);
  void long_integer(ByteView digits);

  Bytes program_;
  std::unordered_map<std::string, uint32_t> memo_;
};

}  // namespace holdfast
