// Makes a model from a Hugging Face config.json, because users have such files at hand.
// Keys that do not change the tensors are ignored; keys that do are read, or refused.
//
// The tensors have the names and shapes that the classes of transformers 5 have
// (tensor_tables.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/json_place.h"
#include "holdfast/models/model.h"

namespace holdfast {

// The types that model_from_config() reads, in order of name.
std::vector<std::string> config_types();

// The name of the rule set (rules.h) for models of the type; "" if there is none.
std::string rules_of_type(std::string_view type);

// The model's name is its model_type. Fails with kUnsupported on another model_type, and
// with kInvalid on sizes that are missing, not positive or absurd (beyond 2^50
// parameters), and on a number of heads that does not divide its size.
Result<Model> model_from_config(const JsonPlace& config);

}  // namespace holdfast
