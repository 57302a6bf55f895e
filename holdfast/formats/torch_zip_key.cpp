// Texts of the keys in a tree of torch: for names of tensors, for messages and for
// comparing.
#include <bit>
#include <cmath>

#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::torch_zip {

std::string text_of_key(const Object& key) {
  if (const auto* text = key.as<std::string>()) return *text;
  if (const auto* integer = key.as<int64_t>()) return std::to_string(*integer);
  if (const auto* big = key.as<Object::BigInteger>()) return big->decimal;
  if (const auto* truth = key.as<bool>()) return *truth ? "True" : "False";
  if (const auto* number = key.as<double>()) return fmt::format("{}", *number);
  if (const auto* bytes = key.as<Bytes>()) return to_hex(*bytes);
  std::string text = key.none() ? "None" : "(";
  if (const auto* tuple = key.as<Object::Tuple>()) {
    for (const Object& item : tuple->items) text += text_of_key(item) + ",";
    text += ")";
  }
  return text;
}

std::string path_of_keys(std::span<const Object> keys) {
  std::string path;
  for (const Object& key : keys) {
    const std::string_view quote = key.as<std::string>() != nullptr ? "\"" : "";
    path += fmt::format("[{}{}{}]", quote, text_of_key(key), quote);
  }
  return path.empty() ? "the saved object" : path;
}

std::string name_of_keys(std::span<const Object> keys) {
  if (keys.empty()) return "tensor";
  std::string name;
  for (const Object& key : keys) {
    if (&key != keys.data()) name += '.';
    name += text_of_key(key);
  }
  return name;
}

std::optional<Bytes> bytes_of_latin1(std::string_view text) {
  Bytes bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    auto point = static_cast<unsigned char>(text[i]);
    if (point > 0xc3) return std::nullopt;
    if (point >= 0xc0) {
      const unsigned low = static_cast<unsigned char>(text[++i]) & 0x3fu;
      point = static_cast<unsigned char>(((point & 3u) << 6) | low);
    }
    bytes.push_back(static_cast<std::byte>(point));
  }
  return bytes;
}

std::string identity_of_key(const Object& key) {
  if (const auto* text = key.as<std::string>()) return "s" + *text;
  if (const auto* bytes = key.as<Bytes>()) return "b" + to_hex(*bytes);
  if (const auto* truth = key.as<bool>()) return *truth ? "1" : "0";
  if (const auto* number = key.as<double>()) {
    if (std::abs(*number) < 0x1p53 && std::trunc(*number) == *number) {
      return std::to_string(static_cast<int64_t>(*number));
    }
    return fmt::format("f{:x}", std::bit_cast<uint64_t>(*number));
  }
  const auto* tuple = key.as<Object::Tuple>();
  if (tuple == nullptr) return text_of_key(key);
  std::string text = "(";
  for (const Object& item : tuple->items) {
    const std::string part = identity_of_key(item);
    text += fmt::format("{}:{},", part.size(), part);
  }
  return text;
}

}  // namespace holdfast::torch_zip
