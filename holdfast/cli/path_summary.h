// What `holdfast show` has read about a path.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/inspect/open_any.h"
#include "holdfast/roles/roles.h"

namespace holdfast {

struct PathSummary {
  Found found;
  Collection collection;
  Object objects{};
  // The objects of single ranks, if the path is a step.
  std::map<int, Object> rank_objects{};
  std::map<std::string, std::string> metadata{};
  std::vector<std::string> left_out{};  // as in Contents
  std::optional<Manifest> manifest{};  // set if the path is a step
  std::vector<Seal> seals{};           // one for each tensor, if the path is a step
  Roles roles{};                       // one for each tensor
};

// Does not open the shards of a step, so that a step can be shown without them.
Result<PathSummary> summarize_path(Env& env, const Path& path);

// The seal as text, "94106359264b9ad0674d59ded7a2bd3a"; nullopt if the tensor was not
// sealed as a whole.
std::optional<std::string> seal_text(const PathSummary& shown, TensorId tensor);

}  // namespace holdfast
