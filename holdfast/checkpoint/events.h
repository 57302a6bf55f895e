// The events that saving and restoring emit (env/event.h).
#pragma once

#include <string>

#include "holdfast/env/event.h"

namespace holdfast {

// All tensors of a save were copied into the staging ring.
struct SaveCaptured {
  static constexpr std::string_view kName = "save_captured";
  int64_t step = 0;
  int64_t bytes = 0;   // the size of this rank's shard
  double seconds = 0;  // since save() was called
  std::string why;     // the reason for the save: "every 500 steps", "signal 15"
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("bytes", self.bytes);
    field("seconds", self.seconds);
    field("why", self.why);
  }
};

// This rank's shard is on the disk. The fields say how many seconds the writing thread
// spent on what (shard_writer.h).
struct SaveWritten {
  static constexpr std::string_view kName = "save_written";
  int64_t step = 0;
  int64_t bytes = 0;
  double stage = 0;
  double digest = 0;
  double disk = 0;
  double sync = 0;
  double seconds = 0;  // the whole write
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

// Tensors were written to before they were captured. The save is dropped.
struct SaveTorn {
  static constexpr std::string_view kName = "save_torn";
  int64_t step = 0;
  int64_t tensors = 0;  // how many
  std::string first;    // the name of the first of them
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("tensors", self.tensors);
    field("first", self.first);
  }
};

// Replicas hold different values although they should be equal. From now on each rank
// saves its own values of these tensors. For a tensor that is cut, the first rank that
// holds a box saves it.
struct ReplicasDiffer {
  static constexpr std::string_view kName = "replicas_differ";
  int64_t tensors = 0;  // how many
  std::string first;    // the name of the first of them
  int64_t rank = 0;     // rank and other hold different values of it
  int64_t other = 0;
  static void fields(auto& self, auto&& field) {
    field("tensors", self.tensors);
    field("first", self.first);
    field("rank", self.rank);
    field("other", self.other);
  }
};

// Digests of replicas differed `false_alarms` times although the replicas were equal,
// because tensors are written to while a save is made. Saves do not compare replicas
// any more.
struct ReplicaChecksEnded {
  static constexpr std::string_view kName = "replica_checks_ended";
  int64_t false_alarms = 0;
  static void fields(auto& self, auto&& field) {
    field("false_alarms", self.false_alarms);
  }
};

// A device cannot compute seals. Those of its tensors are computed from their copies in
// host memory instead, so damage to a copy before that is not found.
struct DeviceSealsMissing {
  static constexpr std::string_view kName = "device_seals_missing";
  int64_t device = 0;
  std::string reason;
  static void fields(auto& self, auto&& field) {
    field("device", self.device);
    field("reason", self.reason);
  }
};

// The save is committed: no crash can lose it.
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

// The save failed and its attempt was dropped. Older checkpoints are untouched.
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

// Back-pressure: the save was not made because too many were under way, or was dropped
// because a newer one took its place.
struct SaveSkipped {
  static constexpr std::string_view kName = "save_skipped";
  int64_t step = 0;
  static void fields(auto& self, auto&& field) { field("step", self.step); }
};

// Steps that retention should remove could not be removed. The next pass tries again.
struct RetentionFailed {
  static constexpr std::string_view kName = "retention_failed";
  std::string reason;
  static void fields(auto& self, auto&& field) { field("reason", self.reason); }
};

// A step was copied to a further tier.
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

// A step could not be copied to or from a further tier, or the tier could not be read.
// The steps in the run directory are not affected.
struct TierCopyFailed {
  static constexpr std::string_view kName = "tier_copy_failed";
  int64_t step = 0;  // -1 if the failure is not about one step
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
  // The newest step that the tier keeps. After a roll-back it may be less than `step`.
  int64_t newest = 0;
  static void fields(auto& self, auto&& field) {
    field("step", self.step);
    field("tier", self.tier);
    field("newest", self.newest);
  }
};

// A further tier was cleaned of what killed processes had left there in the middle of a
// copy or a removal.
struct TierSwept {
  static constexpr std::string_view kName = "tier_swept";
  std::string tier;
  int64_t removed = 0;  // folders; in an object store its objects and uploads
  static void fields(auto& self, auto&& field) {
    field("tier", self.tier);
    field("removed", self.removed);
  }
};

// A step that the run directory did not have was copied there from another tier.
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

// A restore is done. `skipped` counts the newer steps that could not be used.
struct Restored {
  static constexpr std::string_view kName = "restored";
  int64_t step = 0;
  std::string folder;
  int64_t bytes = 0;  // bytes of this rank's pieces
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
