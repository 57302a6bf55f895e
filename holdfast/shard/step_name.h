// The names in a run directory and their meaning:
//
//   step-00000400                          a committed step
//   step-00000400.g2                       the same step, saved again
//   step-00000500.3f9a61c200000000.tmp       an attempt
//   step-00000400.g2.3f9a61c200000000.trash  a step that is being removed
//   step-00000400.pin                        a pin: keeps the step from retention
//   events/rank-0000.jsonl                   the event log of a rank
//
// and in the folder of a step:
//
//   manifest.json           what the step is made of
//   rank-0000.safetensors   a shard; rank-0000.packed if it is compressed
//   rank-0000.index.json    the index of that shard
//   rank-0000.safetensors.parity  parity of that shard, if the run has it (parity.h)
//   objects.json            the objects that are the same on all ranks
//   rank-0000.objects.json  the objects of one rank
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "holdfast/base/result.h"

namespace holdfast {

inline constexpr std::string_view kRunFile = "holdfast.json";
inline constexpr std::string_view kOwnerFile = "owner.json";
inline constexpr std::string_view kLatestFile = "latest";
inline constexpr std::string_view kManifestName = "manifest.json";

// The name of a committed step.
struct StepName {
  int64_t step = 0;
  // Counts how often the step was saved.
  int64_t generation = 1;

  std::string text() const;
  friend auto operator<=>(const StepName&, const StepName&) = default;
};

// Returns nullopt unless `name` is exactly what text() writes.
std::optional<StepName> parse_step_name(std::string_view name);

struct AttemptName {
  int64_t step = 0;
  uint64_t attempt = 0;

  std::string text() const;
  friend auto operator<=>(const AttemptName&, const AttemptName&) = default;
};

std::optional<AttemptName> parse_attempt_name(std::string_view name);

// The name that a step gets before its files are removed. `mark` makes the name unique.
std::string trash_name(const StepName& step, uint64_t mark);
std::optional<StepName> parse_trash_name(std::string_view name);

std::string pin_name(const StepName& step);

// The path of a rank's event log in the run directory.
std::string event_log_name(int rank);

// A compressed shard has another extension, because other tools cannot read it.
std::string shard_name(int rank, bool compressed);
std::string index_name(int rank);
bool is_index_name(std::string_view name);
// The name of a shard's parity file, and the shard of such a name; nullopt for others.
std::string parity_name(std::string_view shard);
std::optional<std::string> shard_of_parity(std::string_view name);
// Without a rank, the file of the objects that are the same on all ranks.
std::string objects_name(std::optional<int> rank = std::nullopt);
// The rank if the name is that of a rank's objects, else nullopt.
std::optional<int> rank_of_objects(std::string_view name);

// A number as 16 lower-case hexadecimal digits, as in names and documents.
std::string hex64(uint64_t number);
std::optional<uint64_t> parse_hex64(std::string_view digits);

// Checks the name of a file in a step folder. Fails with kInvalid if it is empty, is
// longer than 255 bytes, leaves the folder, or has control characters, which a terminal
// would obey.
Result<void> check_file_name(std::string_view name);

}  // namespace holdfast
