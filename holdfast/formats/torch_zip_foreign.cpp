// Handles what files of torch.save hold besides torch's own objects: names from any
// module, and numpy scalars.
#include <algorithm>
#include <cstring>

#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::torch_zip {
namespace {

const std::vector<Object>* tuple_at(const Object::Dict& dict, std::string_view key) {
  const Object* found = find_key(dict, key);
  const auto* tuple = found == nullptr ? nullptr : found->as<Object::Tuple>();
  return tuple == nullptr ? nullptr : &tuple->items;
}

bool is_class(const Object::Dict& object, std::string_view name) {
  const Object* found = find_key(object, kClassKey);
  const auto* text = found == nullptr ? nullptr : found->as<std::string>();
  return text != nullptr && *text == name;
}

// Returns the kind of a numpy dtype: "f8" for numpy.dtype("f8", False, True) with the
// state (3, "<", ...). Returns an empty text for another byte order, and for dtypes
// with fields.
std::string_view kind_of(const Object& dtype) {
  const auto* object = dtype.as<Object::Dict>();
  if (object == nullptr || !is_class(*object, "numpy.dtype")) return "";
  const auto* arguments = tuple_at(*object, kArgumentsKey);
  const auto* state = tuple_at(*object, kStateKey);
  if (arguments == nullptr || arguments->empty()) return "";
  if (state == nullptr || state->size() < 2) return "";
  const auto* order = (*state)[1].as<std::string>();
  const auto* kind = (*arguments)[0].as<std::string>();
  const bool little = order != nullptr && (*order == "<" || *order == "|");
  return little && kind != nullptr ? *kind : std::string_view();
}

template <typename T>
std::optional<T> value_of(ByteView bytes) {
  if (bytes.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <typename T>
std::optional<Object> integer_of(ByteView bytes) {
  const auto value = value_of<T>(bytes);
  if (!value || !std::in_range<int64_t>(*value)) return std::nullopt;
  return Object(static_cast<int64_t>(*value));
}

template <typename T>
std::optional<Object> number_of(ByteView bytes) {
  const auto value = value_of<T>(bytes);
  return value ? std::optional(Object(static_cast<double>(*value))) : std::nullopt;
}

std::optional<Object> scalar_of(std::string_view kind, ByteView bytes) {
  if (kind == "b1" && bytes.size() == 1) return Object(bytes[0] != std::byte{0});
  if (kind == "i1") return integer_of<int8_t>(bytes);
  if (kind == "i2") return integer_of<int16_t>(bytes);
  if (kind == "i4") return integer_of<int32_t>(bytes);
  if (kind == "i8") return integer_of<int64_t>(bytes);
  if (kind == "u1") return integer_of<uint8_t>(bytes);
  if (kind == "u2") return integer_of<uint16_t>(bytes);
  if (kind == "u4") return integer_of<uint32_t>(bytes);
  if (kind == "u8") return integer_of<uint64_t>(bytes);
  if (kind == "f4") return number_of<float>(bytes);
  if (kind == "f8") return number_of<double>(bytes);
  return std::nullopt;
}

// Classes whose objects a file may make when torch.load() reads it.
bool may_be_made(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNames{
      "argparse.Namespace",
      "numpy.dtype",
      "numpy.core.multiarray._reconstruct",
      "numpy._core.multiarray._reconstruct",
      "numpy.core.multiarray.scalar",
      "numpy._core.multiarray.scalar"};
  return std::ranges::count(kNames, name) != 0 ||
         name.starts_with("megatron.core.transformer.enums.");
}

}  // namespace

std::optional<InstanceParts> parts_of_instance(const Object::Dict& dict) {
  const auto* name =
      dict.items.empty() ? nullptr : dict.items[0].second.as<std::string>();
  if (name == nullptr || !is_class(dict, *name) || !may_be_made(*name)) {
    return std::nullopt;
  }
  InstanceParts parts{.name = *name};
  parts.first_is_class = name->ends_with("_reconstruct");
  for (const auto& [key, value] : dict.items) {
    const auto* text = key.as<std::string>();
    if (text == nullptr) return std::nullopt;
    if (*text == kClassKey) continue;
    if (*text == kArgumentsKey) {
      const auto* tuple = value.as<Object::Tuple>();
      if (tuple == nullptr) return std::nullopt;
      parts.arguments = tuple->items;
    } else if (*text == kStateKey) {
      parts.state = value;
    } else if (text->starts_with("__")) {
      return std::nullopt;  // items and entries: lists and dicts of other classes
    } else {
      parts.attributes.emplace_back(key, value);
    }
  }
  // An array is made of a class that the file names, and there is only this one.
  if (parts.first_is_class &&
      (parts.arguments.empty() ||
       parts.arguments[0] != Object(std::string("numpy.ndarray")))) {
    return std::nullopt;
  }
  return parts;
}

bool may_occur(std::string_view global) {
  constexpr std::array<std::string_view, 22> kModules{
      "os",       "posix",      "nt",     "ntpath",  "posixpath", "subprocess",
      "sys",      "shutil",     "socket", "runpy",   "importlib", "pty",
      "ctypes",   "pickle",     "imp",    "marshal", "code",      "codeop",
      "commands", "webbrowser", "timeit", "pdb"};
  constexpr std::array<std::string_view, 18> kBuiltins{
      "eval",    "exec",    "execfile",   "compile", "open",  "__import__",
      "globals", "locals",  "vars",       "input",   "exit",  "quit",
      "setattr", "delattr", "breakpoint", "file",    "apply", "reload"};
  const size_t dot = global.find('.');
  const std::string_view module = global.substr(0, dot);
  if (std::ranges::count(kModules, module) != 0) return false;
  if (module != "builtins" || dot == global.npos) return true;
  return std::ranges::count(kBuiltins, global.substr(dot + 1)) == 0;
}

bool is_known(std::string_view function) {
  constexpr std::array<std::string_view, 6> kOthers{
      "torch.Size",     "torch.device",       "torch.serialization._get_layout",
      "_codecs.encode", "builtins.bytearray", "builtins.bytes"};
  constexpr std::array<std::string_view, 3> kTensors{"torch._utils.", "torch._tensor.",
                                                     "torch.storage."};
  return std::ranges::count(kOthers, function) != 0 ||
         std::ranges::any_of(kTensors, [&](std::string_view module) {
           return function.starts_with(module);
         });
}

bool has_names(const Pickle& pickle, PickleId id) {
  const auto* dict = id == kNoPickleId ? nullptr : pickle[id].as<PickleNode::Dict>();
  return dict != nullptr && std::ranges::all_of(dict->items, [&](const auto& item) {
           const auto* name = pickle[item.first].template as<std::string>();
           return name != nullptr && !name->starts_with("__");
         });
}

std::optional<Object> numpy_scalar(const Object::Dict& object) {
  const bool scalar = is_class(object, "numpy.core.multiarray.scalar") ||
                      is_class(object, "numpy._core.multiarray.scalar");
  const auto* arguments = tuple_at(object, kArgumentsKey);
  if (!scalar || arguments == nullptr || arguments->size() != 2) return std::nullopt;
  const auto* bytes = (*arguments)[1].as<Bytes>();
  if (bytes == nullptr) return std::nullopt;
  return scalar_of(kind_of((*arguments)[0]), *bytes);
}

}  // namespace holdfast::torch_zip
