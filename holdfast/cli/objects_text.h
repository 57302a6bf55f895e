// What a checkpoint holds beside tensors, in a few words for people.
#pragma once

#include <string>
#include <vector>

#include "holdfast/cli/path_summary.h"

namespace holdfast {

// The text of an object as JSON, in which long bytes are shortened if `fold` is true.
std::string object_text(const Object& object, bool fold);

// One row for each kind of thing: its label and what there is of it. A step of a
// Checkpointer has the names of its optimizers, objects, values and generators; any other
// object is shown as it is if it is short, and by its keys if it is long.
std::vector<std::vector<std::string>> objects_summary(const PathSummary& shown);

}  // namespace holdfast
