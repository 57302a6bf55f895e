// The figures of a plan as JSON and in words. The names are the same in C++, Python and on
// the command line.
#pragma once

#include <array>
#include <string_view>

#include "holdfast/base/json_fields.h"
#include "holdfast/plan/cost.h"
#include "holdfast/plan/placement.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

// A figure of a plan: its key in JSON, and its words in the text.
struct FigureRow {
  enum class Unit : uint8_t { kShare, kBytes, kNanoseconds };  // a share of `needed`
  std::string_view key;
  std::string_view words;
  int64_t Figures::*figure;
  Unit unit = Unit::kShare;
};
inline constexpr std::array kFigureRows{
    FigureRow{"needed", "the target needs", &Figures::needed},
    FigureRow{"in_place", "  already in place", &Figures::in_place},
    FigureRow{"copied", "  copied inside a device", &Figures::copied},
    FigureRow{"moved", "  moved", &Figures::moved},
    FigureRow{"moved_bound", "    least possible", &Figures::moved_bound},
    FigureRow{"crossing", "  of it between hosts", &Figures::crossing},
    FigureRow{"crossing_bound", "    least possible", &Figures::crossing_bound},
    FigureRow{"forwarded", "  of it passed on by receivers", &Figures::forwarded},
    FigureRow{"egress_ns", "busiest sender", &Figures::egress_ns,
              FigureRow::Unit::kNanoseconds},
    FigureRow{"egress_bound_ns", "  least possible", &Figures::egress_bound_ns,
              FigureRow::Unit::kNanoseconds},
    FigureRow{"extra_memory", "extra memory, at most", &Figures::extra_memory,
              FigureRow::Unit::kBytes},
    FigureRow{"extra_memory_by_tensor", "  going tensor by tensor",
              &Figures::extra_memory_by_tensor, FigureRow::Unit::kBytes},
};

void fields(Is<Figures> auto& self, auto&& field) {
  for (const FigureRow& row : kFigureRows) field(row.key, self.*row.figure);
}

// The members of an object that has these values.

// "figures", "moves" (their number), "assumed" (the bytes a second at which times are
// counted), "links", "holders": everything except the moves themselves, which only the
// plan has.
void put_members(FieldWriter& field, const Plan& plan, const Topology& topology);
// "device_of_position", "released" (names), "kept", ... "host_rule_cost" has the bytes
// that are moved because tensor-parallel groups stay together, at most.
void put_members(FieldWriter& field, const Placement& placement,
                 const std::vector<Holder>& devices);
// "seconds", "busiest", "device", "adapter", "host", "copy", "moves", "depth", "least".
void put_members(FieldWriter& field, const Cost& cost);

}  // namespace holdfast
