// Reads the configurations whose tensors have the names of transformers (tensor_tables.h):
// Mistral, Qwen, Phi-3, Gemma, DeepSeek, GPT-NeoX, OPT, BERT and ViT.
#pragma once

#include <string>
#include <vector>

#include "holdfast/base/json.h"
#include "holdfast/models/model.h"

namespace holdfast {

// The model types that read_table_model() knows.
std::vector<std::string> table_types();

// `type` must be one of them. Fails like model_from_config().
Result<Model> read_table_model(Fields& fields, const std::string& type);

}  // namespace holdfast
