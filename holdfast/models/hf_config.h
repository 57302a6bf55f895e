// A model from a Hugging Face config.json of the GPT-2, Llama or Mixtral kind, because
// that is what users have at hand. The file is foreign: keys that do not change the
// tensors are ignored, those that do are read or refused.
#pragma once

#include <string_view>

#include "holdfast/base/json_value.h"
#include "holdfast/models/model.h"

namespace holdfast {

// The model is called like its model_type. `where` names the file in messages. Fails
// with kUnsupported on another model_type, with kInvalid on sizes that are missing, not
// positive or absurd (beyond 2^50 parameters), and on heads that do not divide.
Result<Model> model_from_config(const Json& config, std::string_view where);

}  // namespace holdfast
