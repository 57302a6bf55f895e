// Finds the rule of a name. For the files of this folder that apply rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "holdfast/models/rules.h"

namespace holdfast {

// The numbers of "#" and "%" in a pattern.
struct Numbers {
  int64_t layer = 0;
  int64_t expert = -1;
  friend auto operator<=>(const Numbers&, const Numbers&) = default;
};

// The name of a pattern for these numbers.
std::string name_at(std::string_view pattern, const Numbers& at);

struct Found {
  size_t rule = 0;
  Numbers numbers{};
  std::string_view bare{};  // the name without the modules around the model
};

// Modules before the pattern are skipped, but no numbered ones, because what is behind a
// number is inside a layer.
std::optional<Found> find_rule(const RuleSet& set, std::string_view name);
// The same for any of the tensor's names.
std::optional<Found> find_rule(const RuleSet& set, const Tensor& tensor);

}  // namespace holdfast
