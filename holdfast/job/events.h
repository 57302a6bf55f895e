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

// Bytes of a tensor changed that no update has changed, or replicas of it differ, or a
// guard has seen an unusual figure. Written by the rank that has seen it.
struct MemoryAlarm {
  static constexpr std::string_view kName = "memory_alarm";
  int64_t step = 0;  // the last step before it was seen
  int64_t rank = 0;
  std::string tensor{};
  std::string element{};  // its index: "[3, 17]"; empty if more than one word has changed
  std::string bits{};     // "bit 30"
  std::string before{};   // the value as it was, or as most replicas have it
  std::string after{};
  std::string cause{};   // in words
  std::string mended{};  // "seal", "replicas", "itself", or empty if it was not mended
  std::string guard{};   // "dispersion", "spike" or "range"; empty if bits were seen
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("rank", self.rank);
    field("tensor", self.tensor);
    field("element", self.element);
    field("bits", self.bits);
    field("before", self.before);
    field("after", self.after);
    field("cause", self.cause);
    field("mended", self.mended);
    field("guard", self.guard);
  }
};

// The state was left in the memory of the hosts for the next processes.
struct LeftInMemory {
  static constexpr std::string_view kName = "left_in_memory";
  int64_t step = 0;
  std::string folder{};  // on this host
  int64_t bytes = 0;     // of all ranks
  int64_t hosts = 0;
  double seconds = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("folder", self.folder);
    field("bytes", self.bytes);
    field("hosts", self.hosts);
    field("seconds", self.seconds);
  }
};

// The state came from the memory of the hosts, where an earlier process had left it.
struct AdoptedFromMemory {
  static constexpr std::string_view kName = "adopted_from_memory";
  int64_t step = 0;
  int64_t bytes = 0;  // of this rank
  int64_t hosts = 0;  // that this job has
  double seconds = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("bytes", self.bytes);
    field("hosts", self.hosts);
    field("seconds", self.seconds);
  }
};

// The memory of this host has a newer step than the one that was restored, but the job
// was not told to take it.
struct LeftNotTaken {
  static constexpr std::string_view kName = "left_not_taken";
  int64_t step = 0;
  std::string folder{};
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("folder", self.folder);
  }
};

// What an earlier run or an earlier boot had left in the memory of this host was removed.
struct OldPlaceRemoved {
  static constexpr std::string_view kName = "old_place_removed";
  std::string folder{};
  static void fields(auto& self, auto&& field) { field("folder", self.folder); }
};

// A rank was lost. Written by the first of the survivors, or by rank 0 after a restart.
struct RankLost {
  static constexpr std::string_view kName = "rank_lost";
  int64_t rank = 0;
  int64_t pid = 0;
  std::string why{};       // how the process ended
  int64_t step = 0;        // the step that it was in; -1 before its first
  int64_t generation = 0;  // that it was part of
  static void fields(auto& self, auto&& field) {
    field("rank", self.rank);
    field("pid", self.pid);
    field("why", self.why);
    field("step", self.step);
    field("generation", self.generation);
  }
};

// The job went on after ranks were lost.
struct Recovered {
  static constexpr std::string_view kName = "recovered";
  int64_t generation = 0;  // that the ranks are part of now
  int64_t step = 0;        // the step that goes on
  std::string outcome{};   // "forward", "back" or "go on" (decide.h), or "restart"
  // Where the state came from: "replica", "updates" (the lost rank made updates again from kept
  // gradients), "messages" (it made steps again alone), "memory" or "disk".
  std::string rung{};
  std::string reason{};    // why it is not "replica"
  bool exact = false;      // every bit is that of a training in which nobody died
  int64_t steps_lost = 0;  // steps that are made again although they were committed
  int64_t bytes = 0;       // that replacements got from other ranks
  int64_t steps_replayed = 0;  // runs or updates that replacements made again alone
  int64_t log_bytes = 0;       // of the log that they got for that
  int64_t helpers = 0;         // processes that shared the runs; 0 if one made them alone
  double sums = 0;             // seconds that these took to add up what each had made
  // Seconds of each phase. Their sum is the time from the death to the next commit.
  double seen = 0, agreed = 0, started = 0, joined = 0, filled = 0, loaded = 0,
         replayed = 0, redone = 0;
  static void fields(auto& self, auto&& field) {
    field("generation", self.generation);
    field("step", self.step);
    field("outcome", self.outcome);
    field("rung", self.rung);
    field("reason", self.reason);
    field("exact", self.exact);
    field("steps_lost", self.steps_lost);
    field("bytes", self.bytes);
    field("steps_replayed", self.steps_replayed);
    field("log_bytes", self.log_bytes);
    field("helpers", self.helpers);
    field("sums", self.sums);
    field("seen", self.seen);
    field("agreed", self.agreed);
    field("started", self.started);
    field("joined", self.joined);
    field("filled", self.filled);
    field("loaded", self.loaded);
    field("replayed", self.replayed);
    field("redone", self.redone);
  }
};

// The job has another parallel configuration from now on. Written by the first of the ranks
// that were part of it before and still are.
struct Resized {
  static constexpr std::string_view kName = "resized";
  int64_t step = 0;          // behind which it changed
  std::string old{}, to{};   // "tp=2,pp=2,dp=1"
  std::string workers{};     // their numbers, in the order of the ranks
  double stood_still = 0;    // seconds
  int64_t moved = 0;         // bytes between workers
  int64_t bound = 0;         // the least that any plan could move
  int64_t seals = 0;         // tensors that were sealed before and after, and are equal
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("old", self.old);
    field("to", self.to);
    field("workers", self.workers);
    field("stood_still", self.stood_still);
    field("moved", self.moved);
    field("bound", self.bound);
    field("seals", self.seals);
  }
};

// A rank has given another one the gradients of its first updates, for its own replacement.
// Written by each rank, once.
struct UpdatesKept {
  static constexpr std::string_view kName = "updates_kept";
  int64_t steps = 0;        // that were looked at
  double seconds = 0;       // of a step that keeping took, with the wait for the other rank
  double step_seconds = 0;  // of a step
  int64_t bytes = 0;        // of an update
  static void fields(auto& self, auto&& field) {
    field("steps", self.steps);
    field("seconds", self.seconds);
    field("step_seconds", self.step_seconds);
    field("bytes", self.bytes);
  }
};

// A rank has kept the messages of its first steps for a replacement of a lost rank.
// Written by each rank, once.
struct MessagesKept {
  static constexpr std::string_view kName = "messages_kept";
  int64_t steps = 0;        // that were looked at
  double seconds = 0;       // of a step that keeping took
  double step_seconds = 0;  // of a step
  double own_seconds = 0;   // of a step, without waiting for other ranks
  // Bytes of a step, by the ranks that they go from and to: "0>1 2048 0>2 64".
  std::string borders{};
  static void fields(auto& self, auto&& field) {
    field("steps", self.steps);
    field("seconds", self.seconds);
    field("step_seconds", self.step_seconds);
    field("own_seconds", self.own_seconds);
    field("borders", self.borders);
  }
};

}  // namespace holdfast
