// Makes a model from a Hugging Face config.json of the GPT-2, Llama or Mixtral kind,
// because users have such files at hand. Keys that do not change the tensors are
// ignored; keys that do are read, or refused.
#pragma once

#include <string_view>

#include "holdfast/base/json_value.h"
#include "holdfast/models/model.h"

namespace holdfast {

// The model's name is its model_type. `where` names the file in messages. Fails with
// kUnsupported on another model_type, and with kInvalid on sizes that are missing, not
// positive or absurd (beyond 2^50 parameters), and on a number of heads that does not
// divide its size.
Result<Model> model_from_config(const Json& config, std::string_view where);

}  // namespace holdfast
