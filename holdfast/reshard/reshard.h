// Cuts a checkpoint again, from files to files, for another parallel configuration.
//
// The source is whatever open_any.h opens, or a folder of Megatron-LM. A rule set
// (models/rules.h) says how its tensors are cut. Names, shapes and values stay; only the
// boxes in the files change:
//
//   native              a new run with one step, which has a file for each position of the
//                       configuration and the objects of all ranks; resume() takes it like
//                       the original
//   safetensors-folder  whole tensors only
//   dcp                 a folder of torch.distributed.checkpoint with a file for each
//                       position of the configuration
//   megatron            a folder of Megatron-LM with a file for each tensor rank of each
//                       stage; only for a source that comes from Megatron. Here pad rows of
//                       the vocabulary may change (megatron/target.h)
//
// Bytes pass through a few MiB of memory: a file of the target is written from front to
// back, and each window of it is read from the files that have it. Several files are
// written at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/inspect/metered_sources.h"
#include "holdfast/inspect/open_any.h"
#include "holdfast/megatron/megatron.h"
#include "holdfast/megatron/target.h"
#include "holdfast/models/rules.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

inline constexpr std::string_view kNativeFormat = "native";
inline constexpr std::string_view kDcpFormat = "dcp";

struct ReshardOptions {
  std::string to{};        // a configuration such as "tp=2,pp=4", or "whole"
  std::string rules{};     // as choose_rules() takes it, or the path of a JSON file
  std::string format{};    // if empty, that of the source, if it can hold what is asked
  int64_t vocabulary = 0;  // as in MegatronOptions
  int threads = 0;  // how many files are written at once; 0: as the machine has cores
  Reading reading{};
  // Told how many hundredths of the plan are made, which takes long for very many positions.
  Progress planning{};
  std::optional<Identity> identity{};  // of this process; if not set, from /proc
};

// What reshard() would do.
struct ReshardPlan {
  Found from{};
  // Set if the source is a step.
  std::optional<StepFiles> step{};
  // Set if the source is a folder of Megatron.
  std::optional<MegatronFolder> megatron{};
  std::shared_ptr<const Contents> contents{};
  Parallel parallel{};
  bool whole = false;
  std::string rules{};   // the name of the rule set; empty if nothing is cut
  RuleSet rule_set{};    // the set itself, if source or target are of Megatron
  std::string format{};  // "native", or the name of a format
  // The tensors, in the files that will be written. Each element is in one of them.
  std::shared_ptr<const Collection> files{};
  // Set if the target is a folder of Megatron. Then `files` has the tensors whole. Shared,
  // because a plan can be copied.
  std::shared_ptr<const MegatronTarget> megatron_target{};
  int64_t vocabulary = 0;  // as in ReshardOptions
  // What moves bring to the files: `files`, or what MegatronTarget reads for them.
  std::shared_ptr<const Collection> filled{};
  // The moves from the source to `filled`, in order of tensor and file. reshard() reads by
  // them, and reads nothing else for the files.
  std::shared_ptr<const Plan> moves{};
  // Those of the moves. moved_bound is the least that can be read.
  Figures figures{};
  // What is not as in the source, for people.
  std::vector<std::string> notes{};

  std::string_view kind() const {  // "step", "megatron", or the name of a format
    return megatron ? kMegatronFormat : from.kind();
  }
  int64_t target_files() const;
  int64_t target_bytes() const;  // of the tensors in all files
};

// Reads headers and indexes, but no tensors. Fails with kInvalid, naming the tensor, if the
// rules do not fit the checkpoint or the configuration does not fit the rules; with
// kUnsupported if the format cannot hold the target; and like use_any().
Result<ReshardPlan> plan_reshard(Env& env, const Path& from,
                                 const ReshardOptions& options);

struct Resharded {
  int64_t files = 0;
  int64_t kept = 0;  // files that an earlier, interrupted call had finished
  // The bytes that this call has moved to the files that it has written: those of the
  // plan's moves, without those to the files kept.
  int64_t moved = 0;
  int64_t seals = 0;  // tensors whose seals are equal in source and target
  int64_t bytes = 0;  // of all tensors
  Path folder{};      // the step's folder, or the target itself
};

// Carries out the plan: each file is filled by the moves that lead to it. The source is
// read further for its seals, if it has not recorded them, and for copies that must be
// equal. The target appears under its name when it is whole and its seals
// equal those of the source. Until then its files are in the hidden folder ".NAME.reshard"
// beside it. If the process is killed, the next call with the same source and configuration
// continues there, and keeps the files that are finished (not for safetensors). Failures,
// besides those of plan_reshard():
//   kConflict  the target exists, or another process is writing it
//   kNoSpace   there is not enough space; nothing is written
//   kCorrupt   the source's bytes are not those that were saved, or a seal differs
Result<Resharded> reshard(Env& env, const ReshardPlan& plan, const Path& to,
                          const ReshardOptions& options);

}  // namespace holdfast
