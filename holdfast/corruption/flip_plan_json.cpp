// Flip plans as JSON.
#include "holdfast/base/json_fields.h"
#include "holdfast/base/json_text.h"
#include "holdfast/corruption/flip_plan.h"
#include "holdfast/state/tensor_fields.h"

namespace holdfast {
namespace {

// A name under its key. JSON holds only UTF-8, so any other name is written as its bytes,
// in hexadecimal digits, under another key.
void name_field(const char* key, const char* key_of_hex, auto& name, auto& field) {
  if (field.kReads ? !field.has(key_of_hex) : is_utf8(name)) return field(key, name);
  bytes_field(key_of_hex, name, field);
}

// The bits before and after a fault. Their mask follows from them and makes plans easier
// to read.
void bits_fields(auto& change, auto mask, auto to_text, auto parse, auto& field) {
  field.text("mask", mask, to_text, parse);
  field.text("before", change.before, to_text, parse);
  field.text("after", change.after, to_text, parse);
  field.check([&]() -> Result<void> {
    if (mask == change.mask()) return {};
    return invalid("the mask is not before XOR after; expected that");
  });
}

}  // namespace

Result<std::byte> parse_byte(std::string_view text) {
  const Result<Bytes> bytes = from_hex(text);
  if (bytes.ok() && bytes->size() == 1) return bytes->front();
  return invalid("a byte is {}; expected two hexadecimal digits", shown(text));
}

void fields(Is<PlannedFlip> auto& self, auto&& field) {
  name_field("tensor", "tensor_hex", self.tensor, field);
  field("index", self.index);
  field("element", self.element);
  field("dtype", self.dtype);
  bits_fields(
      self, self.mask(),
      [&](const ElementBits& bits) { return bits_text(self.dtype, bits); },
      [&](std::string_view text) { return parse_bits(self.dtype, text); }, field);
}

void fields(Is<PlannedByte> auto& self, auto&& field) {
  name_field("file", "file_hex", self.file, field);
  field("offset", self.offset);
  bits_fields(
      self, self.mask(), [](std::byte byte) { return to_hex(byte); }, parse_byte, field);
}

void fields(Is<FlipPlan> auto& self, auto&& field) {
  field.version(1);
  field.kind("flip plan");
  field("seed", self.seed);
  field("trial", self.trial);
  field("fault", self.fault);
  field("sites", self.sites);
  field("passed_over", self.passed_over);
  field.optional("unwritten", self.unwritten);
  field("flips", self.flips);
  field("bytes", self.bytes);
  field.check([&]() -> Result<void> {
    if (self.flips.empty() || self.bytes.empty()) return {};
    return invalid("has both flips and bytes; expected one of them");
  });
}

std::string encode_flip_plan(const FlipPlan& plan) {
  return to_json_text(plan, {.indent = 2, .ascii = true});
}

Result<FlipPlan> decode_flip_plan(std::string_view text, const std::string& where) {
  return from_json<FlipPlan>(text, where);
}

}  // namespace holdfast
