// What saving and restoring have to say (base/event.h).
#pragma once

#include <string>

#include "holdfast/env/event.h"

namespace holdfast {

// The tensors of a save are in the ring.
struct SaveCaptured {
  static constexpr std::string_view kName = "save_captured";
  int64_t step = 0;
  int64_t bytes = 0;   // of this rank
  double seconds = 0;  // since save() was called
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("bytes", self.bytes);
    field("seconds", self.seconds);
  }
};

// A rank's shard is on the disk; where the writing thread's time went (shard_writer.h).
struct SaveWritten {
  static constexpr std::string_view kName = "save_written";
  int64_t step = 0;
  int64_t bytes = 0;
  double stage = 0;
  double digest = 0;
  double disk = 0;
  double sync = 0;
  double seconds = 0;  // all of it
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("bytes", self.bytes);
    field("stage", self.stage);
    field("digest", self.digest);
    field("disk", self.disk);
    field("sync", self.sync);
    field("seconds", self.seconds);
  }
};

// Tensors were written to before they were captured: the save is dropped.
struct SaveTorn {
  static constexpr std::string_view kName = "save_torn";
  int64_t step = 0;
  int64_t tensors = 0;
  std::string first;  // name of one
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("tensors", self.tensors);
    field("first", self.first);
  }
};

// Ranks hold tensors with different values that should be equal: from now on each rank's own
// are saved, or, of tensors that are cut, those of the first ranks that hold the parts.
struct ReplicasDiffer {
  static constexpr std::string_view kName = "replicas_differ";
  int64_t tensors = 0;
  std::string first;  // name of one
  int64_t rank = 0;   // two that differ in it
  int64_t other = 0;
  static void fields(auto& self, auto&& field) {
    field("tensors", self.tensors);
    field("first", self.first);
    field("rank", self.rank);
    field("other", self.other);
  }
};

// Digests of replicas differed so many times although the replicas were equal, because
// tensors are written to while a save is made. They are not compared any more.
struct ReplicaChecksEnded {
  static constexpr std::string_view kName = "replica_checks_ended";
  int64_t false_alarms = 0;
  static void fields(auto& self, auto&& field) {
    field("false_alarms", self.false_alarms);
  }
};

struct SaveDurable {
  static constexpr std::string_view kName = "save_durable";
  int64_t step = 0;
  std::string folder;
  double seconds = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("folder", self.folder);
    field("seconds", self.seconds);
  }
};

// The attempt was dropped; older checkpoints are untouched.
struct SaveFailed {
  static constexpr std::string_view kName = "save_failed";
  int64_t step = 0;
  std::string code;
  std::string reason;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("code", self.code);
    field("reason", self.reason);
  }
};

// Back-pressure: no room for it, or a newer one took its place.
struct SaveSkipped {
  static constexpr std::string_view kName = "save_skipped";
  int64_t step = 0;
  static void fields(auto& self, auto&& field) { field("step", self.step); }
};

struct RetentionFailed {
  static constexpr std::string_view kName = "retention_failed";
  std::string reason;
  static void fields(auto& self, auto&& field) { field("reason", self.reason); }
};

// A further tier has the step too.
struct StepCopied {
  static constexpr std::string_view kName = "step_copied";
  int64_t step = 0;
  std::string tier;
  double seconds = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("tier", self.tier);
    field("seconds", self.seconds);
  }
};

// It has not; the step in the run directory is as safe as before.
struct TierCopyFailed {
  static constexpr std::string_view kName = "tier_copy_failed";
  int64_t step = 0;
  std::string tier;
  std::string reason;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("tier", self.tier);
    field("reason", self.reason);
  }
};

// Retention has removed a step from a further tier.
struct TierStepRemoved {
  static constexpr std::string_view kName = "tier_step_removed";
  int64_t step = 0;
  std::string tier;
  int64_t newest = 0;  // the newest step that the tier keeps; less after a roll-back
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("tier", self.tier);
    field("newest", self.newest);
  }
};

// What copies and removals that were killed had left in a further tier is gone.
struct TierSwept {
  static constexpr std::string_view kName = "tier_swept";
  std::string tier;
  int64_t removed = 0;  // folders, or objects and uploads
  static void fields(auto& self, auto&& field) {
    field("tier", self.tier);
    field("removed", self.removed);
  }
};

// A step that the run directory had not was copied there from another tier.
struct StepFetched {
  static constexpr std::string_view kName = "step_fetched";
  int64_t step = 0;
  std::string tier;
  double seconds = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("tier", self.tier);
    field("seconds", self.seconds);
  }
};

// A restore is done: from which step, past which others, and how long it took.
struct Restored {
  static constexpr std::string_view kName = "restored";
  int64_t step = 0;
  std::string folder;
  int64_t bytes = 0;  // of this rank
  int64_t skipped = 0;
  double seconds = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("folder", self.folder);
    field("bytes", self.bytes);
    field("skipped", self.skipped);
    field("seconds", self.seconds);
  }
};

}  // namespace holdfast
