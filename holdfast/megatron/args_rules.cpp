// What the objects of a checkpoint of Megatron tell about it.
#include "holdfast/megatron/megatron.h"
#include "holdfast/megatron/objects.h"
#include "holdfast/models/tensor_tables.h"

namespace holdfast {

RuleSet with_gates(RuleSet rules, const Object& objects) {
  const Object* args = find_key(objects, "args");
  if (args == nullptr || !(megatron::true_at(*args, "swiglu") ||
                           megatron::true_at(*args, "gated_linear_unit"))) {
    return rules;
  }
  for (Rule& rule : rules.rules) {
    const auto known = rule_of_module(rule.pattern);
    const bool up = known && !known->with.empty();
    if (up && rule.cut == Cut::kAxis && rule.axis == 0) rule.parts = 2;
  }
  return rules;
}

std::optional<double> megatron_version(const Object& objects) {
  const Object* version = find_key(objects, "checkpoint_version");
  if (version == nullptr) return std::nullopt;
  const auto* integer = version->as<int64_t>();
  if (integer != nullptr) return static_cast<double>(*integer);
  const auto* number = version->as<double>();
  return number == nullptr ? std::nullopt : std::optional(*number);
}

std::optional<int64_t> megatron_iteration(const Object& objects) {
  const auto iteration = megatron::integer_at(objects, "iteration");
  return iteration && *iteration >= 0 ? iteration : std::nullopt;
}

bool is_megatron_objects(const Object& objects) {
  return find_key(objects, "model") != nullptr &&
         find_key(objects, "checkpoint_version") != nullptr;
}

Result<void> check_megatron_heads(const Object& objects, int64_t tp) {
  const Object* args = find_key(objects, "args");
  if (args == nullptr) return {};
  for (const char* key : {"num_attention_heads", "num_query_groups"}) {
    if (key == std::string_view("num_query_groups") &&
        !megatron::true_at(*args, "group_query_attention")) {
      continue;
    }
    const auto count = megatron::integer_at(*args, key);
    if (!count || *count <= 0 || *count % tp == 0) continue;
    return invalid("args.{}: is {}, which tp={} does not divide; expected a divisor",
                   key, *count, tp);
  }
  return {};
}

}  // namespace holdfast
