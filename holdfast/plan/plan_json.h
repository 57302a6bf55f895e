// A plan's figures as JSON: the same names in C++, Python and on the command line.
#pragma once

#include "holdfast/base/json_value.h"
#include "holdfast/plan/placement.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

OrderedJson to_json(const Figures& figures);

// {"figures": {...}, "moves": count, "links": [...], "holders": [...]}: everything but
// the moves themselves, which an executor takes from the plan.
OrderedJson to_json(const Plan& plan, const Topology& topology);

// {"device_of_position": [...], "released": [names], "kept": ..., ...}
OrderedJson to_json(const Placement& placement, const std::vector<Holder>& devices);

}  // namespace holdfast
