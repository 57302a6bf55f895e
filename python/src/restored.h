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

// The steps that a restore skipped, as (folder, why) pairs.
inline Pairs pairs_of(const std::vector<SkippedStep>& skipped) {
  Pairs pairs;
  for (const SkippedStep& step : skipped) {
    pairs.emplace_back(step.folder, step.error.message());
  }
  return pairs;
}

// The Python objects are made once and not at each access, so that changes which a
// caller makes to them stay.
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
