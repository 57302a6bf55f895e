#include "holdfast/formats/npy.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

constexpr std::string_view kNpyMark = "\x93NUMPY";
// NumPy itself refuses texts above 10,000 bytes. A shape needs much less.
constexpr int64_t kMaxNpyText = 65536;

// The text after the byte order in descr: kind and size.
struct NumpyName {
  std::string_view text;
  Dtype dtype;
};
constexpr NumpyName kNumpyNames[] = {
    {"b1", Dtype::kBool}, {"u1", Dtype::kU8},   {"u2", Dtype::kU16},
    {"u4", Dtype::kU32},  {"u8", Dtype::kU64},  {"i1", Dtype::kI8},
    {"i2", Dtype::kI16},  {"i4", Dtype::kI32},  {"i8", Dtype::kI64},
    {"f2", Dtype::kF16},  {"f4", Dtype::kF32},  {"f8", Dtype::kF64},
    {"c8", Dtype::kC64},  {"c16", Dtype::kC128}};

// What the text of a header says.
struct Literal {
  std::string descr{};
  std::optional<bool> fortran_order{};
  std::optional<std::vector<int64_t>> shape{};
};

// Reads the dict of a header. Only what NumPy writes is understood: text in quotes, True
// and False, and tuples of integers (of Python 2 with an L behind them).
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view rest) : rest_(rest) {}

  std::optional<Literal> read() {
    Literal literal;
    if (!take('{')) return std::nullopt;
    while (!take('}')) {
      const std::optional<std::string> key = text();
      if (!key || !take(':') || !read_value(*key, literal)) return std::nullopt;
      if (!take(',') && peek() != '}') return std::nullopt;
    }
    skip_space();
    const bool whole = rest_.empty() && !literal.descr.empty() &&
                       literal.fortran_order && literal.shape;
    return whole ? std::optional(std::move(literal)) : std::nullopt;
  }

 private:
  bool read_value(const std::string& key, Literal& literal) {
    if (key == "descr" && literal.descr.empty()) return read_descr(literal);
    if (key == "fortran_order" && !literal.fortran_order) {
      literal.fortran_order = boolean();
      return literal.fortran_order.has_value();
    }
    if (key == "shape" && !literal.shape) {
      literal.shape = tuple();
      return literal.shape.has_value();
    }
    return false;
  }

  // A list stands for records with fields. It is not read further, only refused.
  bool read_descr(Literal& literal) {
    if (peek() == '[') {
      literal.descr = "[";
      rest_ = rest_.substr(std::min(rest_.size(), rest_.rfind(']') + 1));
      return true;
    }
    literal.descr = text().value_or("");
    return !literal.descr.empty();
  }

  void skip_space() {
    const size_t first = rest_.find_first_not_of(" \n");
    rest_.remove_prefix(std::min(first, rest_.size()));
  }

  char peek() {
    skip_space();
    return rest_.empty() ? '\0' : rest_.front();
  }

  bool take(char c) {
    if (peek() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool take_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::optional<std::string> text() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return std::nullopt;
    const size_t end = rest_.find(quote, 1);
    if (end == rest_.npos) return std::nullopt;
    const std::string inside(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return inside.find('\\') == inside.npos ? std::optional(inside) : std::nullopt;
  }

  std::optional<bool> boolean() {
    if (take_word("True")) return true;
    if (take_word("False")) return false;
    return std::nullopt;
  }

  std::optional<int64_t> integer() {
    if (peek() < '0' || peek() > '9') return std::nullopt;
    int64_t value = 0;
    while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
      const auto more = checked_mul<int64_t>(value, 10);
      const auto sum = more ? checked_add<int64_t>(*more, rest_.front() - '0') : more;
      if (!sum) return std::nullopt;
      value = *sum;
      rest_.remove_prefix(1);
    }
    if (!rest_.empty() && rest_.front() == 'L') rest_.remove_prefix(1);
    return value;
  }

  std::optional<std::vector<int64_t>> tuple() {
    if (!take('(')) return std::nullopt;
    std::vector<int64_t> items;
    while (!take(')')) {
      const std::optional<int64_t> item = integer();
      if (!item) return std::nullopt;
      items.push_back(*item);
      if (!take(',') && (peek() != ')' || items.size() < 2)) return std::nullopt;
    }
    return items;
  }

  std::string_view rest_;
};

Result<void> set_dtype(NpyHeader& header, const std::string& descr,
                       const std::string& where) {
  std::string_view name = descr;
  const bool ordered = name.find_first_of("<>=|") == 0;
  header.big_endian = name.starts_with('>');
  if (ordered) name.remove_prefix(1);
  header.objects = name == "O" || name == "O8" || name == "O4";
  if (header.objects) return {};
  for (const NumpyName& one : kNumpyNames) {
    if (one.text != name) continue;
    header.dtype = one.dtype;
    header.big_endian = header.big_endian && bytes_of(one.dtype) > 1;
    return {};
  }
  if (descr == "[") {
    return unsupported("{}: is an array of records with fields; expected numbers",
                       where);
  }
  return unsupported(
      "{}: has the NumPy dtype {}; expected booleans, integers, floats or "
      "complex numbers",
      where, descr.substr(0, 40));
}

// Checks that the array ends where the source ends.
Result<void> check_size(const NpyHeader& header, const Source& source) {
  const int64_t bytes = header.shape.elements() * bytes_of(header.dtype);
  if (header.objects || bytes == source.size() - header.bytes) return {};
  return corrupt("{}: has {} bytes behind its header; expected {} for {} {}",
                 source.name(), source.size() - header.bytes, bytes,
                 name_of(header.dtype), to_string(header.shape));
}

// The header's text, and in `bytes` where it ends.
Result<std::string> read_text(const Source& source, int64_t& bytes) {
  const int64_t some = std::min<int64_t>(source.size(), 12);
  const Bytes head = HOLDFAST_TRY(source.read_bytes(0, some));
  const auto version = some < 10 ? 0 : static_cast<int>(head[6]);
  if (!text_of(head).starts_with(kNpyMark) || some < (version == 1 ? 10 : 12)) {
    return corrupt("{}: does not begin with the header of a NumPy array",
                   source.name());
  }
  if (version < 1 || version > 3 || head[7] != std::byte{0}) {
    return unsupported("{}: version {}.{} of the NumPy format; expected 1.0 to 3.0",
                       source.name(), version, static_cast<int>(head[7]));
  }
  const int64_t begin = version == 1 ? 10 : 12;
  const ByteView field = ByteView(head).subspan(8);
  const int64_t length = version == 1 ? load_little_endian<uint16_t>(field)
                                      : load_little_endian<uint32_t>(field);
  if (length > kMaxNpyText || length > source.size() - begin) {
    return corrupt("{}: the header of the NumPy array is {} bytes, limit {}",
                   source.name(), length, std::min(kMaxNpyText, source.size() - begin));
  }
  bytes = begin + length;
  return std::string(text_of(HOLDFAST_TRY(source.read_bytes(begin, length))));
}

}  // namespace

Map NpyHeader::map(int64_t offset) const {
  Map map = Map::dense(Box::whole(shape), bytes_of(dtype), offset + bytes);
  int64_t stride = bytes_of(dtype);
  for (int k = 0; fortran_order && k < shape.rank(); ++k) {
    map.strides[static_cast<size_t>(k)] = stride;
    stride *= std::max<int64_t>(shape[k], 1);
  }
  return map;
}

Result<NpyHeader> read_npy_header(const Source& source) {
  NpyHeader header;
  const std::string text = HOLDFAST_TRY(read_text(source, header.bytes));
  const std::optional<Literal> literal = LiteralReader(text).read();
  if (!literal) {
    return corrupt(
        "{}: the header of the NumPy array is not a dict of descr, "
        "fortran_order and shape",
        source.name());
  }
  HOLDFAST_TRY(set_dtype(header, literal->descr, source.name()));
  auto shape = Shape::create(*literal->shape);
  if (!shape.ok()) {
    const bool deep = literal->shape->size() > static_cast<size_t>(kMaxRank);
    return shape.error()
        .as(deep ? ErrorCode::kUnsupported : ErrorCode::kCorrupt)
        .within(source.name());
  }
  header.shape = *shape;
  header.fortran_order = *literal->fortran_order;
  HOLDFAST_TRY(check_size(header, source));
  return header;
}

bool is_numpy_dtype(Dtype dtype) {
  return std::ranges::find(kNumpyNames, dtype, &NumpyName::dtype) !=
         std::end(kNumpyNames);
}

Bytes write_npy_header(Dtype dtype, const Shape& shape) {
  const auto found = std::ranges::find(kNumpyNames, dtype, &NumpyName::dtype);
  HOLDFAST_CHECK(found != std::end(kNumpyNames), "{}", name_of(dtype));
  std::string sizes;
  for (const int64_t size : shape.sizes()) sizes += fmt::format("{}, ", size);
  if (shape.rank() > 1) sizes.resize(sizes.size() - 2);
  if (shape.rank() == 1) sizes.pop_back();
  std::string text =
      fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                  bytes_of(dtype) == 1 ? '|' : '<', found->text, sizes);
  // The data begins at a multiple of 64, as NumPy has it.
  text.append(63 - (10 + text.size()) % 64, ' ');
  text += '\n';
  // The mark, version 1.0, and how long the text is.
  Bytes bytes(10 + text.size());
  std::ranges::copy(bytes_of(kNpyMark), bytes.begin());
  bytes[6] = std::byte{1};
  store_little_endian(static_cast<uint16_t>(text.size()), ByteSpan(bytes).subspan(8));
  std::ranges::copy(bytes_of(text), bytes.begin() + 10);
  return bytes;
}

}  // namespace holdfast
