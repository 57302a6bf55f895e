// A restored state as Python holds it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "holdfast/checkpoint/restore.h"
#include "object.h"

namespace holdfast::python {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Steps that were passed over: folder, and why.
inline Pairs pairs_of(const std::vector<SkippedStep>& skipped) {
  Pairs pairs;
  for (const SkippedStep& step : skipped) {
    pairs.emplace_back(step.folder, step.error.message());
  }
  return pairs;
}

// Objects are made once, so that a caller may change them.
struct HeldRestored {
  // Needs the GIL.
  static HeldRestored of(RestoredState state) {
    nb::object objects = to_python(state.objects);
    nb::object rank_objects = to_python(state.rank_objects);
    return {std::move(state), std::move(objects), std::move(rank_objects)};
  }

  RestoredState state;
  nb::object objects;
  nb::object rank_objects;
};

}  // namespace holdfast::python
