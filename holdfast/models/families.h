// The built-in models by name, with their real dimensions.
//
//   gpt2, gpt2-medium, gpt2-large, gpt2-xl     vocabulary 50257, 1024 positions
//   gpt-125m ... gpt-175b                      GPT-3's sizes; 2048 positions
//   tenplex-large, -1.3b, -2.7b, -6.7b         of Tenplex's evaluation; 1024 positions
//   llama-3-8b, llama-3-70b, llama-3-405b, mixtral-8x7b
//   resnet50, vgg16
//
// GPT-3's published table contradicts itself in two rows, where the hidden size is not
// heads times head size. Here 1.3b keeps the hidden size (2048, with 16 heads), and 13b
// keeps the heads (40, with a hidden size of 5120). Other sizes can be made with
// transformers.h, or from a config.json (hf_config.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/models/convnets.h"
#include "holdfast/models/transformers.h"

namespace holdfast {

// All names, in the order above.
std::vector<std::string> model_names();
// Fails with kNotFound, listing the names, on an unknown name.
Result<Model> find_model(std::string_view name);

}  // namespace holdfast
