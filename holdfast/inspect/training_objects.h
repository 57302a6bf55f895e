// What a Checkpointer of the Python package saves beside tensors, as far as tools read
// it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/inspect/open_any.h"
#include "holdfast/state/object.h"

namespace holdfast {

struct TrainingObjects {
  Object all{};                 // saved once, for all ranks
  std::vector<Object> ranks{};  // saved by each rank, in the order of ranks
};

// Returns nullopt if no Checkpointer made this step or file. `objects` are those of the
// opened contents.
Result<std::optional<TrainingObjects>> read_training_objects(Env& env,
                                                             const Found& found,
                                                             const Object& objects);

// Tensors and values that differ by rank are saved under names that end in "@rank3".
// Without that ending it is the name that the program knows.
struct RankName {
  std::string_view name;
  std::optional<int> rank{};
};
RankName split_rank(std::string_view name);

}  // namespace holdfast
