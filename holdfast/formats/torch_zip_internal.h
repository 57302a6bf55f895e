// What torch's pickles mean. For torch_zip_*.cpp.
#pragma once

#include <array>
#include <optional>
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
  std::vector<View> views{};  // in order of the tree
};

// True for the names that may stand in a pickle of torch. They are only names: most are
// refused where they are used, with the path of the object.
bool may_occur(std::string_view global);

// `where` and the size of the pickle, which bounds what it may grow to.
Result<Tree> read_tree(const Pickle& pickle, std::string_view where,
                       size_t pickle_bytes);

// A dict's key in names and messages: model, 0, None.
std::string text_of_key(const Object& key);
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
