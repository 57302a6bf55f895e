// What a job has to say (base/event.h). schedule/learn.h counts failures by the first two.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/env/event.h"

namespace holdfast {

// This process has opened the run and is about to train.
struct JobOpened {
  static constexpr std::string_view kName = "job_opened";
  static void fields(auto& /*self*/, auto&& /*field*/) {}
};

// This process has ended training as it was meant to, with everything durable. A process
// that is killed or fails never says so.
struct JobClosed {
  static constexpr std::string_view kName = "job_closed";
  static void fields(auto& /*self*/, auto&& /*field*/) {}
};

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
