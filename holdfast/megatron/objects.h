// Access to the objects of a checkpoint of Megatron by their keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/state/object.h"

namespace holdfast::megatron {

inline constexpr const char* kRanksKey = "ranks";
inline constexpr const char* kRandomKey = "rng_state";

// Replaces the value of a key, or adds the key. The object must be a dict.
void set_key(Object& dict, std::string_view key, Object value);
std::optional<int64_t> integer_at(const Object& dict, std::string_view key);
bool true_at(const Object& dict, std::string_view key);

// A value in a tree of dicts whose keys are texts, and the keys that lead to it.
struct Leaf {
  std::vector<std::string> path{};
  Object value{};
};

// All leaves of the tree, in order. An object of a class, which is a dict with
// "__class__", is one leaf. Fails with kUnsupported on a key that is no text.
Result<std::vector<Leaf>> collect_leaves(const Object& tree);
// Adds a leaf to a tree. The tree must be a dict.
void add_leaf(Object& tree, const Leaf& leaf);
// "language_model.encoder.final_layernorm.weight"
std::string joined(const std::vector<std::string>& path);

// Finds the number behind "layers." in a path. Returns nullopt if there is none.
std::optional<int64_t> layer_of(const std::vector<std::string>& path);
// The same path with another number.
std::vector<std::string> with_layer(std::vector<std::string> path, int64_t layer);

// Replaces each tensor in the object by its bytes, so that small tensors beside the model
// (states of generators, the scale of the loss) are objects like numbers. Fails with
// kUnsupported, naming the tensor, if one has more than 1 MiB.
Result<Object> with_bytes_of_tensors(const Contents& contents, const Object& object);

// A tensor that is stored in an object as its bytes.
struct StoredBytes {
  Dtype dtype = Dtype::kU8;
  Shape shape{};
  Bytes bytes{};
};
// The tensor that such an object is; nullopt for any other object.
std::optional<StoredBytes> bytes_of_tensor(const Object& object);

}  // namespace holdfast::megatron
