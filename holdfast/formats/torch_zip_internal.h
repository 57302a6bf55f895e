// What torch's pickles mean. For torch_zip_*.cpp.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/formats/pickle_reader.h"
#include "holdfast/state/object.h"
#include "holdfast/state/strided.h"
#include "holdfast/state/tensor.h"

namespace holdfast::torch_zip {

// A tensor as the pickle describes it. Only its shape is checked.
struct View {
  std::string name{};  // model.fc.weight
  std::string path{};  // ["model"]["fc.weight"], for messages
  Dtype dtype = Dtype::kF32;
  Shape shape{};
  std::array<int64_t, kMaxRank> strides{};  // in elements
  int64_t offset = 0;                       // in elements
  std::string key{};                        // of the storage
  int64_t storage_bytes = 0;
};

struct Tree {
  Object objects{};
  std::vector<View> views{};              // in order of the tree
  std::vector<std::string> simplified{};  // as in Contents
};

// False for the names that only an attack has: functions that run programs, open files or
// evaluate text. Nothing would be called, but such a file is refused rather than read.
bool may_occur(std::string_view global);
// True for the functions that mean something here: those that make tensors (also of kinds
// that are refused), sizes, devices and bytes. Others stay data.
bool is_known(std::string_view function);

// The entries that stand for an object of another class. Beside them are its attributes by
// their names, or "__state__" where they have none.
inline constexpr std::string_view kClassKey = "__class__";
inline constexpr std::string_view kArgumentsKey = "__arguments__";
inline constexpr std::string_view kItemsKey = "__items__";
inline constexpr std::string_view kEntriesKey = "__entries__";
inline constexpr std::string_view kStateKey = "__state__";

// True for a dict of attributes by name, none of which is called as these entries are.
bool has_names(const Pickle& pickle, PickleId id);

// The number that a numpy scalar is, given as such entries; nullopt for another object, and
// for numbers that Object does not have.
std::optional<Object> numpy_scalar(const Object::Dict& object);

// `where` and the size of the pickle, which bounds what it may grow to.
Result<Tree> read_tree(const Pickle& pickle, std::string_view where,
                       size_t pickle_bytes);

// A dict's key in names and messages: model, 0, None.
std::string text_of_key(const Object& key);
// Of an object in the tree, by the keys that lead to it: ["model"]["fc.weight"] for
// messages, and model.fc.weight, by which a tensor is called.
std::string path_of_keys(std::span<const Object> keys);
std::string name_of_keys(std::span<const Object> keys);
// The bytes that UTF-8 text of code points below 256 stands for; nullopt if it has others.
std::optional<Bytes> bytes_of_latin1(std::string_view text);
// Equal exactly for keys that Python holds for equal: 1, 1.0 and True are one key.
std::string identity_of_key(const Object& key);

// torch.FloatStorage is a storage of F32; nullopt for the others.
std::optional<Dtype> dtype_of_storage(std::string_view global);
// Empty for what torch writes as an UntypedStorage.
std::string_view storage_of_dtype(Dtype dtype);
// torch.float32.
std::string global_of_dtype(Dtype dtype);
std::optional<Dtype> dtype_of_global(std::string_view global);

}  // namespace holdfast::torch_zip
