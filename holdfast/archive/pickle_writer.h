// Writes pickles of protocol 2 with the opcodes that torch.load(weights_only=True)
// supports.
//
// The caller writes values in their order: a dict is begin_dict(), key, value, key,
// value, ..., end_dict(). Names of functions are kept in the memo; other values are
// never shared. Not thread safe.
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
  // Fails with kInvalid if the text is not a decimal number, and with kUnsupported if
  // the number needs more than 255 bytes.
  Result<void> big_integer(std::string_view decimal);
  // Fails with kInvalid if the text is not UTF-8 or has 4 GiB or more.
  Result<void> text(std::string_view text);
  // Writes bytes as a call of _codecs.encode, as Python does. Fails with kInvalid for 2
  // GiB or more.
  Result<void> bytes(ByteView bytes);

  // Begins items that are added to the dict on top of the stack. end_dict() ends them.
  void mark();
  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();

  // Writes a name, for example global("torch._utils", "_rebuild_tensor_v2").
  void global(std::string_view module, std::string_view name);
  // Calls the global below the top of the stack with the tuple on top as its arguments.
  void call();
  // Makes an object of the class below the top of the stack. The tuple on top has the
  // arguments of its constructor.
  void new_object();
  // Sets the attributes of the object below the top of the stack to the value on top,
  // which is usually a dict.
  void set_state();
  // Makes a reference to an object outside of the pickle. The tuple on top of the stack
  // is its id.
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
