// What the store has to say (base/event.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast {

struct AttemptStarted {
  static constexpr std::string_view kName = "attempt_started";
  int64_t step = 0;
  std::string attempt{};
  int64_t epoch = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("attempt", self.attempt);
    field("epoch", self.epoch);
  }
};

struct StepCommitted {
  static constexpr std::string_view kName = "step_committed";
  int64_t step = 0;
  std::string folder{};
  std::string attempt{};
  int64_t epoch = 0;
  int64_t sequence = 0;
  int64_t bytes = 0;  // of all files
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("folder", self.folder);
    field("attempt", self.attempt);
    field("epoch", self.epoch);
    field("sequence", self.sequence);
    field("bytes", self.bytes);
  }
};

struct AttemptAbandoned {
  static constexpr std::string_view kName = "attempt_abandoned";
  int64_t step = 0;
  std::string attempt{};
  std::string reason{};  // empty if nobody gave one
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("attempt", self.attempt);
    field("reason", self.reason);
  }
};

// The step is whole and committed, but the text file that points to it is not written.
struct LatestNotWritten {
  static constexpr std::string_view kName = "latest_not_written";
  std::string folder{};
  std::string reason{};
  static void fields(auto& self, auto&& field) {
    field("folder", self.folder);
    field("reason", self.reason);
  }
};

// A step that could not be used on the way to the newest whole one.
struct StepSkipped {
  static constexpr std::string_view kName = "step_skipped";
  std::string folder{};
  std::string reason{};
  static void fields(auto& self, auto&& field) {
    field("folder", self.folder);
    field("reason", self.reason);
  }
};

struct StepRemoved {
  static constexpr std::string_view kName = "step_removed";
  std::string folder{};
  static void fields(auto& self, auto&& field) { field("folder", self.folder); }
};

struct RemovalFailed {
  static constexpr std::string_view kName = "removal_failed";
  std::string folder{};
  std::string reason{};
  static void fields(auto& self, auto&& field) {
    field("folder", self.folder);
    field("reason", self.reason);
  }
};

// A file of the run directory is damaged, and the job went on without it.
struct RunFileDamaged {
  static constexpr std::string_view kName = "run_file_damaged";
  std::string reason{};  // names the file
  std::string remedy{};  // what was done
  static void fields(auto& self, auto&& field) {
    field("reason", self.reason);
    field("remedy", self.remedy);
  }
};

struct RunTakenOver {
  static constexpr std::string_view kName = "run_taken_over";
  int64_t epoch = 0;  // of the new owner
  std::string from{};
  std::string reason{};
  int64_t last_seen_ns = 0;  // since 1970: when the old owner last renewed its lease
  static void fields(auto& self, auto&& field) {
    field("epoch", self.epoch);
    field("from", self.from);
    field("reason", self.reason);
    field("last_seen_ns", self.last_seen_ns);
  }
};

}  // namespace holdfast
