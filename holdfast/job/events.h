// The events of a job (env/event.h). schedule/learn.h counts the failures of a run by
// JobOpened, JobRejoined and JobClosed, and learns the cost of its saves from SaveCost.
#pragma once

#include <string>
#include <string_view>

#include "holdfast/env/event.h"

namespace holdfast {

// This process has opened the run and is about to train.
struct JobOpened {
  static constexpr std::string_view kName = "job_opened";
  bool joined = false;  // it replaces a lost rank of a job whose other ranks live
  static void fields(auto& self, auto&& field) { field("joined", self.joined); }
};

// This process goes on, together with a new process for every rank that was lost.
struct JobRejoined {
  static constexpr std::string_view kName = "job_rejoined";
  static void fields(auto& /*self*/, auto&& /*field*/) {}
};

// This process has ended training in an orderly way, and all its saves are durable. A
// process that is killed or fails does not emit this event.
struct JobClosed {
  static constexpr std::string_view kName = "job_closed";
  static void fields(auto& /*self*/, auto&& /*field*/) {}
};

// What a save has cost, in seconds: how long it kept training waiting, and how long it
// took from then until it was durable.
struct SaveCost {
  static constexpr std::string_view kName = "save_cost";
  int64_t step = 0;
  double stall = 0;
  double persist = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("stall", self.stall);
    field("persist", self.persist);
  }
};

// A rank has waited for other ranks for some seconds, and goes on waiting.
struct RanksLate {
  static constexpr std::string_view kName = "ranks_late";
  int64_t rank = 0;     // the rank that waits
  std::string missing;  // the late ranks, in words: "ranks 1, 3"
  std::string what;     // what the late ranks have not reached yet: "step 400"
  double seconds = 0;   // how long the rank has waited
  static void fields(auto& self, auto&& field) {
    field("rank", self.rank);
    field("missing", self.missing);
    field("what", self.what);
    field("seconds", self.seconds);
  }
};

}  // namespace holdfast
