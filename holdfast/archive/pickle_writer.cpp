#include "holdfast/archive/pickle_writer.h"

#include <bit>

#include "holdfast/base/json_text.h"
#include "holdfast/archive/pickle_internal.h"
#include "holdfast/archive/pickle_reader.h"

namespace holdfast {

using namespace pickle;

namespace {

constexpr uint8_t kProtocol = 2;

void add(Bytes& to, ByteView bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

}  // namespace

PickleWriter::PickleWriter() { op_number(kProto, kProtocol); }

void PickleWriter::op(uint8_t code) { program_.push_back(std::byte{code}); }

template <typename T>
void PickleWriter::op_number(uint8_t code, T value) {
  op(code);
  program_.resize(program_.size() + sizeof(T));
  store_little_endian(value, ByteSpan(program_).last(sizeof(T)));
}

void PickleWriter::none() { op(kNone); }

void PickleWriter::boolean(bool value) { op(value ? kNewTrue : kNewFalse); }

void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value <= 0xff)
    return op_number(kBinInt1, static_cast<uint8_t>(value));
  if (value >= 0 && value <= 0xffff) {
    return op_number(kBinInt2, static_cast<uint16_t>(value));
  }
  if (value >= INT32_MIN && value <= INT32_MAX) {
    return op_number(kBinInt, static_cast<uint32_t>(value));
  }
  long_integer(bytes_of_integer(value));
}

void PickleWriter::number(double value) {
  op(kBinFloat);
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) {
    program_.push_back(static_cast<std::byte>((bits >> shift) & 0xff));
  }
}

void PickleWriter::long_integer(ByteView digits) {
  op_number(kLong1, static_cast<uint8_t>(digits.size()));
  add(program_, digits);
}

Result<void> PickleWriter::big_integer(std::string_view decimal) {
  // Longer numbers do not fit into 255 bytes, and the time of the conversion grows with
  // the square of the length.
  constexpr size_t kMaxDigits = 700;
  const auto digits = bytes_of_decimal(decimal.substr(0, kMaxDigits));
  if (!digits)
    return invalid("\"{}\" is not an integer", decimal.substr(0, kMaxDigits));
  if (decimal.size() > kMaxDigits || digits->size() > 0xff) {
    return unsupported(
        "an integer of {} digits; expected one of at most 255 bytes, because torch "
        "reads no longer one",
        decimal.size());
  }
  long_integer(*digits);
  return {};
}

Result<void> PickleWriter::text(std::string_view text) {
  if (text.size() > UINT32_MAX)
    return invalid("text of {} bytes; expected less than 4 GiB", text.size());
  if (!is_utf8(text)) return invalid("text is not UTF-8");
  op_number(kBinUnicode, static_cast<uint32_t>(text.size()));
  add(program_, bytes_of(text));
  return {};
}

Result<void> PickleWriter::bytes(ByteView bytes) {
  if (bytes.size() > INT32_MAX)
    return invalid("{} bytes in one value; expected less than 2 GiB", bytes.size());
  std::string latin;
  for (const std::byte byte : bytes) {
    const auto point = std::to_integer<unsigned>(byte);
    if (point >= 0x80) latin.push_back(static_cast<char>(0xc0 | (point >> 6)));
    latin.push_back(static_cast<char>(point < 0x80 ? point : 0x80 | (point & 0x3f)));
  }
  global("_codecs", "encode");
  HOLDFAST_TRY(text(latin));
  HOLDFAST_TRY(text("latin1"));
  op(kTuple2);
  call();
  return {};
}

void PickleWriter::mark() { op(kMark); }

void PickleWriter::begin_dict() {
  op(kEmptyDict);
  mark();
}
void PickleWriter::end_dict() { op(kSetItems); }

void PickleWriter::begin_list() {
  op(kEmptyList);
  op(kMark);
}
void PickleWriter::end_list() { op(kAppends); }

void PickleWriter::begin_tuple() { op(kMark); }
void PickleWriter::end_tuple() { op(kTuple); }

void PickleWriter::global(std::string_view module, std::string_view name) {
  const std::string line = fmt::format("{}\n{}\n", module, name);
  const auto [known, is_new] = memo_.emplace(line, static_cast<uint32_t>(memo_.size()));
  if (!is_new) return op_number(kLongBinGet, known->second);
  op(kGlobal);
  add(program_, bytes_of(line));
  op_number(kLongBinPut, known->second);
}

void PickleWriter::call() { op(kReduce); }

void PickleWriter::new_object() { op(kNewObject); }

void PickleWriter::set_state() { op(kBuild); }

void PickleWriter::persistent() { op(kBinPersistent); }

Bytes PickleWriter::finish() && {
  op(kStop);
  return std::move(program_);
}

}  // namespace holdfast
