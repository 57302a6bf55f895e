// The figures of a plan as JSON. The names are the same in C++, Python and on the
// command line.
#pragma once

#include "holdfast/base/json_value.h"
#include "holdfast/plan/placement.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

OrderedJson to_json(const Figures& figures);

// {"figures": {...}, "moves": count, "assumed": {...}, "links": [...], "holders": [...]}:
// everything except the moves themselves, which only the plan has. "assumed" has the
// bytes a second at which times are counted.
OrderedJson to_json(const Plan& plan, const Topology& topology);

// {"device_of_position": [...], "released": [names], "kept": ..., ...}. "host_rule_cost"
// has the bytes that are moved because tensor-parallel groups stay together, at most.
OrderedJson to_json(const Placement& placement, const std::vector<Holder>& devices);

}  // namespace holdfast
