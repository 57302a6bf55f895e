// The built-in models, by name, with their real dimensions.
//
//   gpt2, gpt2-medium, gpt2-large, gpt2-xl     vocabulary 50257, 1024 positions
//   gpt-125m ... gpt-175b                      GPT-3's sizes; 2048 positions
//   tenplex-1.3b, -2.7b, -6.7b                 as in Tenplex's evaluation; 1024 positions
//   llama-3-8b, llama-3-70b, mixtral-8x7b
//   resnet50, vgg16
//
// Where GPT-3's table contradicts itself (hidden is not heads times head size) the
// hidden size of 1.3b and the heads of 13b are kept: 2048 with 16 heads, 40 heads with
// 5120. Other sizes: transformers.h, or a config.json (hf_config.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/models/convnets.h"
#include "holdfast/models/transformers.h"

namespace holdfast {

// In the order above.
std::vector<std::string> model_names();
// Fails with kNotFound, listing the names, on any other.
Result<Model> find_model(std::string_view name);

}  // namespace holdfast
