// Flip plans as JSON.
#include "holdfast/base/json.h"
#include "holdfast/base/json_text.h"
#include "holdfast/corruption/flip_plan.h"

namespace holdfast {
namespace {

constexpr const char* kKind = "flip plan";
constexpr int64_t kVersion = 1;

// A name under its key. JSON holds only UTF-8, so any other name is written as its bytes,
// in hexadecimal digits, under KEY_hex.
OrderedJson::object_t::value_type name_json(const std::string& key,
                                            const std::string& name) {
  if (is_utf8(name)) return {key, name};
  return {key + "_hex", to_hex(bytes_of(name))};
}

Result<std::string> read_name(Fields& fields, const std::string& key) {
  if (!fields.has(key + "_hex")) return fields.text(key);
  const Bytes bytes =
      HOLDFAST_TRY(from_hex(HOLDFAST_TRY(fields.text(key + "_hex"))).within(fields.where()));
  return std::string(text_of(bytes));
}

OrderedJson flip_json(const PlannedFlip& flip) {
  const auto [key, name] = name_json("tensor", flip.tensor);
  return {{key, name},
          {"index", flip.index},
          {"element", flip.element},
          {"dtype", name_of(flip.dtype)},
          {"mask", bits_text(flip.dtype, flip.mask())},
          {"before", bits_text(flip.dtype, flip.before)},
          {"after", bits_text(flip.dtype, flip.after)}};
}

std::string hex_of(std::byte byte) { return to_hex(ByteView(&byte, 1)); }

OrderedJson byte_json(const PlannedByte& byte) {
  const auto [key, name] = name_json("file", byte.file);
  return {{key, name},
          {"offset", byte.offset},
          {"mask", hex_of(byte.before ^ byte.after)},
          {"before", hex_of(byte.before)},
          {"after", hex_of(byte.after)}};
}

Error mask_differs(const Fields& fields) {
  return invalid("{}: the mask is not before XOR after; expected that", fields.where());
}

Result<PlannedFlip> read_flip(const Json& json, const std::string& where) {
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  PlannedFlip flip;
  flip.tensor = HOLDFAST_TRY(read_name(fields, "tensor"));
  flip.element = HOLDFAST_TRY(fields.integer("element"));
  flip.dtype =
      HOLDFAST_TRY(parse_dtype(HOLDFAST_TRY(fields.text("dtype"))).within(where));
  const Json& index = *HOLDFAST_TRY(fields.array("index"));
  for (const Json& one : index) {
    flip.index.push_back(HOLDFAST_TRY(json_integer(one, where + ".index")));
  }
  const auto bits = [&](const std::string& text) {
    return parse_bits(flip.dtype, text).within(where);
  };
  flip.before = HOLDFAST_TRY(bits(HOLDFAST_TRY(fields.text("before"))));
  flip.after = HOLDFAST_TRY(bits(HOLDFAST_TRY(fields.text("after"))));
  const ElementBits mask = HOLDFAST_TRY(bits(HOLDFAST_TRY(fields.text("mask"))));
  if (mask != flip.mask()) return mask_differs(fields);
  HOLDFAST_TRY(fields.done());
  return flip;
}

Result<std::byte> read_byte_field(Fields& fields, const char* key) {
  const std::string text = HOLDFAST_TRY(fields.text(key));
  const Result<Bytes> bytes = from_hex(text);
  if (bytes.ok() && bytes->size() == 1) return bytes->front();
  return invalid("{}.{}: is {}; expected two hexadecimal digits", fields.where(), key,
                 shown(text));
}

Result<PlannedByte> read_byte(const Json& json, const std::string& where) {
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  PlannedByte byte;
  byte.file = HOLDFAST_TRY(read_name(fields, "file"));
  byte.offset = HOLDFAST_TRY(fields.integer("offset"));
  byte.before = HOLDFAST_TRY(read_byte_field(fields, "before"));
  byte.after = HOLDFAST_TRY(read_byte_field(fields, "after"));
  const std::byte mask = HOLDFAST_TRY(read_byte_field(fields, "mask"));
  if (mask != (byte.before ^ byte.after)) return mask_differs(fields);
  HOLDFAST_TRY(fields.done());
  return byte;
}

Result<FlipPlan> read_plan(Fields& fields) {
  const std::string kind = HOLDFAST_TRY(fields.text("holdfast"));
  if (kind != kKind) {
    return invalid("{}: is a {}; expected a \"{}\"", fields.where(), shown(kind), kKind);
  }
  const int64_t version = HOLDFAST_TRY(fields.integer("version"));
  if (version != kVersion) {
    return unsupported("{}: version {}; expected {}", fields.where(), version,
                       kVersion);
  }
  FlipPlan plan;
  plan.seed = HOLDFAST_TRY(fields.integer("seed"));
  plan.trial = HOLDFAST_TRY(fields.integer("trial"));
  plan.fault = HOLDFAST_TRY(fields.text("fault"));
  plan.sites = HOLDFAST_TRY(fields.integer("sites"));
  plan.passed_over = HOLDFAST_TRY(fields.integer("passed_over"));
  if (fields.has("unwritten")) {
    plan.unwritten = HOLDFAST_TRY(fields.integer("unwritten"));
  }
  const Json& flips = *HOLDFAST_TRY(fields.array("flips"));
  for (size_t i = 0; i < flips.size(); ++i) {
    plan.flips.push_back(HOLDFAST_TRY(
        read_flip(flips[i], fmt::format("{}: flips[{}]", fields.where(), i))));
  }
  const Json& bytes = *HOLDFAST_TRY(fields.array("bytes"));
  for (size_t i = 0; i < bytes.size(); ++i) {
    plan.bytes.push_back(HOLDFAST_TRY(
        read_byte(bytes[i], fmt::format("{}: bytes[{}]", fields.where(), i))));
  }
  HOLDFAST_TRY(fields.done());
  if (plan.flips.empty() || plan.bytes.empty()) return plan;
  return invalid("{}: has both flips and bytes; expected one of them", fields.where());
}

}  // namespace

std::string encode_flip_plan(const FlipPlan& plan) {
  OrderedJson flips = OrderedJson::array(), bytes = OrderedJson::array();
  for (const PlannedFlip& flip : plan.flips) flips.push_back(flip_json(flip));
  for (const PlannedByte& byte : plan.bytes) bytes.push_back(byte_json(byte));
  OrderedJson json{{"version", kVersion},
                   {"holdfast", kKind},
                   {"seed", plan.seed},
                   {"trial", plan.trial},
                   {"fault", plan.fault},
                   {"sites", plan.sites},
                   {"passed_over", plan.passed_over}};
  if (plan.unwritten > 0) json["unwritten"] = plan.unwritten;
  json["flips"] = std::move(flips);
  json["bytes"] = std::move(bytes);
  return json.dump(2, ' ', true, OrderedJson::error_handler_t::replace);
}

Result<FlipPlan> decode_flip_plan(std::string_view text, const std::string& where) {
  const Json json = HOLDFAST_TRY(parse_json(text, where));
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  Result<FlipPlan> plan = read_plan(fields);
  if (plan.ok() || plan.error().code() == ErrorCode::kUnsupported) return plan;
  return plan.error().as(ErrorCode::kInvalid);
}

}  // namespace holdfast
