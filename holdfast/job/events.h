// What a job has to say (base/event.h). schedule/learn.h counts failures by these events.
#pragma once

#include <string_view>

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

}  // namespace holdfast
