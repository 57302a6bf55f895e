// The events that the store emits (env/event.h).
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
  // The size of all files together.
  int64_t bytes = 0;
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

// The step is whole and committed, but the text file `latest`, which points people to
// it, could not be written.
struct LatestNotWritten {
  static constexpr std::string_view kName = "latest_not_written";
  std::string folder{};
  std::string reason{};
  static void fields(auto& self, auto&& field) {
    field("folder", self.folder);
    field("reason", self.reason);
  }
};

// A step could not be used while the newest whole step was looked for.
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

// A file of the run directory is damaged, and the job continues without it.
struct RunFileDamaged {
  static constexpr std::string_view kName = "run_file_damaged";
  // The reason names the file.
  std::string reason{};
  // Says what the job did instead.
  std::string remedy{};
  static void fields(auto& self, auto&& field) {
    field("reason", self.reason);
    field("remedy", self.remedy);
  }
};

struct RunTakenOver {
  static constexpr std::string_view kName = "run_taken_over";
  // The epoch of the new owner.
  int64_t epoch = 0;
  std::string from{};
  std::string reason{};
  // When the old owner last renewed its lease, in nanoseconds since 1970.
  int64_t last_seen_ns = 0;
  static void fields(auto& self, auto&& field) {
    field("epoch", self.epoch);
    field("from", self.from);
    field("reason", self.reason);
    field("last_seen_ns", self.last_seen_ns);
  }
};

}  // namespace holdfast
