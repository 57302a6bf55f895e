// What a format of plain named arrays cannot hold, as texts that it stores beside the
// arrays: a record of npz, an attribute of HDF5, a string tensor of TensorFlow.
//
// The texts are in the typed JSON of state/object_json.h, by their keys:
//
//   holdfast.objects   Contents::objects
//   holdfast.metadata  {"key": "text"}: Contents::metadata
//   holdfast.ties      {"w": ["other name", …]}: the tensor is stored once, and these are
//                      all of its other names
//   holdfast.dtypes    {"w": "BF16"}: "w" is stored as unsigned integers of this size
//   holdfast.names     {"stored name": "name"}
//
// The names in ties and dtypes are those under which the format stores the tensors. A
// text that would say nothing is left out. The role, `of` and pad_multiple of a tensor
// are not kept.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"

namespace holdfast {

// All texts have keys with this prefix, so other names in a file must not begin with it.
inline constexpr std::string_view kKeptPrefix = "holdfast.";

using KeptTexts = std::map<std::string, std::string>;

// How a format stores a tensor: under which name, and as which dtype.
struct StoredAs {
  std::string name{};
  Dtype dtype = Dtype::kF32;
  // Whether the format itself keeps the aliases of the tensor, all and in their order.
  bool has_ties = false;
};

// The unsigned integers in which a dtype is stored that a format does not have.
// Aborts for dtypes of more than 8 bytes.
Dtype unsigned_like(Dtype dtype);

// Makes the texts. `stored` has one entry for each tensor. A stored dtype must be that
// of the tensor or unsigned_like() it. `objects` are those that the format cannot store
// by itself. Fails with kInvalid for objects or names that are not UTF-8, and for
// objects that name tensors that are not there.
Result<KeptTexts> keep_beside(const Contents& contents, const Object& objects,
                              std::span<const StoredAs> stored);

struct RestoredTexts {
  Object objects{};
  std::map<std::string, std::string> metadata{};
};

// Applies the texts that a file has to its tensors, which then have their own names,
// dtypes and aliases. Fails with kCorrupt, naming `where` and the key, if a text is not
// as keep_beside() writes it, or is about a tensor that is not there.
Result<RestoredTexts> restore_kept(const KeptTexts& texts, std::span<Tensor> tensors,
                                   const std::string& where);

// Fails with kInvalid if the objects name a tensor that is not there.
Result<void> check_tensor_names(const Object& objects, std::span<const Tensor> tensors);

}  // namespace holdfast
