#include "holdfast/models/rule_match.h"

#include <algorithm>

#include "holdfast/base/number_text.h"
#include "holdfast/models/tensor_tables.h"

namespace holdfast {
namespace {

// How many modules may stand around the model: a name such as
// "optimizer.module.model.decoder.layers.0.mlp.up.weight".
constexpr int kMostWrappers = 4;

// Numbers of layers and experts are far below this.
constexpr int64_t kMostNumber = int64_t{1} << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads the number at the beginning of the text and removes it.
std::optional<int64_t> take_place(std::string_view& text) {
  const auto number = take_number<int64_t>(text);
  return number && *number >= 0 && *number <= kMostNumber ? number : std::nullopt;
}

std::optional<Numbers> match(std::string_view pattern, std::string_view name) {
  Numbers numbers;
  for (; !pattern.empty(); pattern.remove_prefix(1)) {
    if (pattern.front() == '#' || pattern.front() == '%') {
      const auto number = take_place(name);
      if (!number) return std::nullopt;
      (pattern.front() == '#' ? numbers.layer : numbers.expert) = *number;
      continue;
    }
    if (name.empty() || name.front() != pattern.front()) return std::nullopt;
    name.remove_prefix(1);
  }
  return name.empty() ? std::optional(numbers) : std::nullopt;
}

}  // namespace

std::string name_at(std::string_view pattern, const Numbers& at) {
  std::string name;
  for (const char c : pattern) {
    if (c == '#') {
      name += std::to_string(at.layer);
    } else if (c == '%') {
      name += std::to_string(at.expert);
    } else {
      name += c;
    }
  }
  return name;
}

std::optional<Found> find_rule(const RuleSet& set, std::string_view name) {
  for (int skipped = 0; skipped <= kMostWrappers; ++skipped) {
    for (size_t i = 0; i < set.rules.size(); ++i) {
      const auto numbers = match(set.rules[i].pattern, name);
      if (numbers) return Found{i, *numbers, name};
    }
    const size_t dot = name.find('.');
    if (dot == name.npos || is_digit(name.front())) break;
    name.remove_prefix(dot + 1);
  }
  return std::nullopt;
}

std::optional<Found> find_rule(const RuleSet& set, const Tensor& tensor) {
  auto found = find_rule(set, tensor.name);
  for (const std::string& alias : tensor.aliases) {
    if (!found) found = find_rule(set, alias);
  }
  return found;
}

const Rule* rule_of_name(const RuleSet& rules, std::string_view name) {
  const auto found = find_rule(rules, name);
  return found ? &rules.rules[found->rule] : nullptr;
}

int64_t count_ruled(const RuleSet& rules, std::span<const Tensor> tensors) {
  return std::ranges::count_if(tensors, [&](const Tensor& tensor) {
    return find_rule(rules, tensor).has_value();
  });
}

std::vector<FileTensor> file_tensors(const RuleSet& rules, std::string_view name,
                                     const Shape& shape) {
  const auto found = find_rule(rules, name);
  if (!found || rules.rules[found->rule].in_files.empty()) return {};
  const Rule& rule = rules.rules[found->rule];
  const std::string_view around = name.substr(0, name.size() - found->bare.size());
  std::vector<FileTensor> tensors;
  const int first = rule.stacked ? 1 : 0;
  const int64_t experts = rule.stacked && shape.rank() > 0 ? shape[0] : 1;
  if (shape.rank() <= first || shape[first] % rule.parts != 0) return {};
  const int64_t part = shape[first] / rule.parts;
  Numbers at = found->numbers;
  for (at.expert = 0; at.expert < experts; ++at.expert) {
    int64_t begin = 0;
    for_each_word(rule.in_files, [&](std::string_view pattern) {
      FileTensor& one = tensors.emplace_back();
      one.name = fmt::format("{}{}", around, name_at(pattern, at));
      one.box = Box::whole(shape).with(first, {begin, begin + part});
      if (rule.stacked) one.box = one.box.with(0, {at.expert, at.expert + 1});
      const Shape all = one.box.shape();
      one.shape = Shape::create(all.sizes().subspan(static_cast<size_t>(first))).value();
      begin += part;
    });
  }
  return tensors;
}

}  // namespace holdfast
