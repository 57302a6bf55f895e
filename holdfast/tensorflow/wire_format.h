// The wire format of protocol buffers, as far as TensorFlow's checkpoints need it:
// varints, fixed numbers of 4 and 8 bytes, and bytes with a length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "holdfast/base/bytes.h"

namespace holdfast::bundle {

// Removes a varint from the front of the bytes. Returns nullopt if they do not begin
// with one of at most 64 bits; then the bytes stay as they are.
std::optional<uint64_t> take_varint(ByteView& bytes);
void append_varint(std::string& out, uint64_t number);
void append_fixed32(std::string& out, uint32_t number);
void append_fixed64(std::string& out, uint64_t number);

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field of a message.
struct WireField {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;  // of a number
  ByteView bytes{};    // of a field with a length
  int64_t offset = 0;  // where the value begins in the message
};

// Reads the fields of a message one after the other.
class WireReader {
 public:
  explicit WireReader(ByteView message) : rest_(message), size_(std::ssize(message)) {}

  bool done() const { return rest_.empty(); }
  // Returns nullopt if what follows is not a field. Groups, which are obsolete, are not
  // fields.
  std::optional<WireField> next();

 private:
  bool read_value(WireField& field);

  ByteView rest_;
  const int64_t size_;
};

// Write a field. Numbers that are 0 are left out, as proto3 demands.
void append_number(std::string& out, uint32_t field, uint64_t number);
void append_bytes(std::string& out, uint32_t field, std::string_view bytes);
// Writes the field even if the number is 0.
void append_fixed32_field(std::string& out, uint32_t field, uint32_t number);

}  // namespace holdfast::bundle
