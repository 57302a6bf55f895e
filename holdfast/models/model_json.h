// A model as JSON: the names and shapes of its tensors, as holdfast.layout_of() finds
// them in a module of PyTorch.
//
//   {"holdfast": "model", "version": 1, "name": "MyModel", "heads": 8, "kv_heads": 2,
//    "tensors": [{"name": "layers.0.mlp.fc1.weight", "dtype": "F32", "shape": [64, 16]}]}
//
// heads and kv_heads are optional. The keys of a tensor are those of collection_json.h,
// without "of", and "transposed" (NamedTensor).
#pragma once

#include "holdfast/base/json_place.h"
#include "holdfast/models/model.h"

namespace holdfast {

// True if the document says that it is such a model.
bool is_model_json(const JsonPlace& at);

// Fails like model_of_tensors(), and on keys that are missing, unknown or wrong.
Result<Model> model_from_json(const JsonPlace& at);

}  // namespace holdfast
