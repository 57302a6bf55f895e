// What the ranks of a job have to say about each other (base/event.h).
#pragma once

#include <string>

#include "holdfast/base/event.h"

namespace holdfast {

// A rank has waited for others for some seconds, and waits on.
struct RanksLate {
  static constexpr std::string_view kName = "ranks_late";
  int64_t rank = 0;     // that waits
  std::string missing;  // in words: "ranks 1, 3"
  std::string what;     // that they have not come to: "step 400"
  double seconds = 0;
  static void fields(auto& self, auto&& field) {
    field("rank", self.rank);
    field("missing", self.missing);
    field("what", self.what);
    field("seconds", self.seconds);
  }
};

}  // namespace holdfast
