// The options that choose faults, for `holdfast inject` and `holdfast campaign`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "holdfast/cli/command.h"
#include "holdfast/corruption/make_plan.h"

namespace holdfast {

struct FlipArguments {
  std::vector<std::string> tensors, roles, layers;
  std::string roles_from;
  std::string bits = "all";
  int64_t flips = 1, seed = 0, burst = 0;
  std::string rate, mask, stuck_at, scale, value;
  std::string finite = "any", sampling = "bits";
  bool anywhere = false;
  std::string checksums;
};

// Adds options that fill the arguments, which must outlive them.
void add_flip_options(FlipArguments& arguments, std::vector<Option>& options);

// Fails with kInvalid, naming the option, if a value makes no sense.
Result<PlanRequest> read_request(const FlipArguments& arguments);

// Fails with kInvalid, naming both options, if `option`, which names plans that have their
// sites already, is given together with an option that chooses sites or faults.
Result<void> check_without_sites(const FlipArguments& arguments, const std::string& option);

// What was asked for, as names and texts, except for the kind of the fault, which
// Fault::text() says.
std::vector<std::pair<std::string, std::string>> settings_of(
    const FlipArguments& arguments);

// Reads the map of --roles-from. Without a path the map is empty.
Result<RoleMap> read_role_map(Env& env, const std::string& path);

Result<FlipPlan> read_plan_file(Env& env, const std::string& path);

// Reads the number of an option. Fails with kInvalid, naming the option.
Result<double> read_number(const std::string& option, const std::string& text);

}  // namespace holdfast
