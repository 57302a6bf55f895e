// Functions that several tests of torch's zip files use.
#pragma once

#include <bit>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/formats/torch_zip.h"

namespace holdfast {

inline Bytes read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  HOLDFAST_CHECK(file.good(), "{}: cannot read", path.native());
  std::ostringstream text;
  text << file.rdbuf();
  return copy_of(bytes_of(text.view()));
}

inline std::shared_ptr<const Source> source_of(Bytes bytes, std::string name = "t.pt") {
  return std::make_shared<MemorySource>(std::move(name), std::move(bytes));
}

inline Result<Contents> open_path(const std::filesystem::path& path) {
  return open_torch(source_of(read_whole(path), path.filename()));
}

inline Bytes canonical(const Contents& contents, std::string_view name) {
  const TensorId id = contents.collection.find(name).value();
  Bytes bytes(static_cast<size_t>(contents.collection.tensor(id).bytes()));
  const auto read = read_canonical(contents, id, 0, bytes);
  HOLDFAST_CHECK(read.ok(), "{}: {}", name, read.error().message());
  return bytes;
}

// Describes an object in the notation of describe() in make_fixtures.py.
inline std::string describe(const Object& object);

inline std::string describe(const std::vector<Object>& items) {
  std::string text;
  for (const Object& item : items) text += (text.empty() ? "" : ",") + describe(item);
  return text;
}

inline std::string describe(const Object& object) {
  if (const auto* leaf = object.as<Object::TensorName>()) return "@" + leaf->name;
  if (const auto* list = object.as<Object::List>()) {
    return "[" + describe(list->items) + "]";
  }
  if (const auto* tuple = object.as<Object::Tuple>()) {
    return "(" + describe(tuple->items) + ")";
  }
  if (const auto* dict = object.as<Object::Dict>()) {
    std::string text;
    for (const auto& [key, value] : dict->items) {
      text += (text.empty() ? "" : ",") + describe(key) + ":" + describe(value);
    }
    return "{" + text + "}";
  }
  if (const auto* number = object.as<double>()) {
    return fmt::format("f{:016x}", std::bit_cast<uint64_t>(*number));
  }
  if (const auto* bytes = object.as<Bytes>()) return "b" + to_hex(*bytes);
  if (const auto* text = object.as<std::string>()) return "s" + to_hex(bytes_of(*text));
  if (const auto* truth = object.as<bool>()) return *truth ? "True" : "False";
  if (const auto* integer = object.as<int64_t>()) return std::to_string(*integer);
  if (const auto* big = object.as<Object::BigInteger>()) return big->decimal;
  return "None";
}

// Describes all of a file in the notation of expected.txt.
inline std::vector<std::string> describe(const std::string& file,
                                         const Contents& contents) {
  std::vector<std::string> lines;
  for (const Tensor& tensor : contents.collection.tensors()) {
    lines.push_back(fmt::format("{}\ttensor\t{}\t{}\t{}\t{}", file, tensor.name,
                                name_of(tensor.dtype), to_string(tensor.shape),
                                to_hex(canonical(contents, tensor.name))));
    for (const std::string& alias : tensor.aliases) {
      lines.push_back(fmt::format("{}\tties\t{}\t{}", file, tensor.name, alias));
    }
  }
  lines.push_back(fmt::format("{}\tobject\t{}", file, describe(contents.objects)));
  return lines;
}

}  // namespace holdfast
