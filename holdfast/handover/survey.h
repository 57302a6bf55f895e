// What the hosts of a job have in their memories when its processes start: which steps
// an earlier process has left there (leave.h), and whether a step is complete.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/handover/rounds.h"
#include "holdfast/shared_place/shared_place.h"

namespace holdfast {

// A step that at least one host has a part of. The same on all ranks.
struct FoundStep {
  Manifest manifest{};
  std::vector<int> ranks{};  // whose hosts have its small files
  // For each shard the ranks whose hosts have it. A shard that has none is lost.
  std::map<std::string, std::vector<int>> shards{};

  // The first shard that went with its host; nullopt if the step is complete.
  std::optional<std::string> lost() const;
};

struct Survey {
  std::vector<std::string> places{};   // by rank; empty where the host has no place
  std::vector<FoundStep> steps{};      // newest first
  std::vector<std::string> refused{};  // why places cannot be used, one sentence each
  std::vector<std::string> damaged{};  // the same for single steps

  // True if all ranks see one and the same place.
  bool is_one_place() const;
};

// Called by all ranks together.
Result<Survey> survey_memory(const JobRanks& ranks, const SharedPlace& place,
                             Duration at_most);

// A sentence that names a tensor and a box that went with a host. Called by all ranks
// together for a step that is not complete.
Result<std::string> name_lost_box(const JobRanks& ranks, const SharedPlace& place,
                            const FoundStep& step, Duration at_most);

// The folder of the step on this rank's host. kNotFound if the host has none.
Result<Path> folder_of_step(const SharedPlace& place, const Manifest& manifest);

}  // namespace holdfast
