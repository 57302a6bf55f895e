// The figures of a plan as JSON. The names are the same in C++, Python and on the
// command line.
#pragma once

#include "holdfast/base/json_value.h"
#include "holdfast/plan/placement.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

OrderedJson to_json(const Figures& figures);

// {"figures": {...}, "moves": count, "links": [...], "holders": [...]}: everything
// except the moves themselves, which only the plan has.
OrderedJson to_json(const Plan& plan, const Topology& topology);

// {"device_of_position": [...], "released": [names], "kept": ..., ...}
OrderedJson to_json(const Placement& placement, const std::vector<Holder>& devices);

}  // namespace holdfast
