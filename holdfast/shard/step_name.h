// Names in a run directory, and what they say.
//
//   step-00000400                          a committed step
//   step-00000400.g2                       the same step, saved again
//   step-00000500.3f9a61c200000000.tmp     an attempt
//   step-00000400.g2.3f9a61c200000000.trash  a step that is being removed
//   step-00000400.pin                      says that retention leaves the step alone
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

// A committed step's name.
struct StepName {
  int64_t step = 0;
  int64_t generation = 1;  // counts the times that the step was saved

  std::string text() const;
  friend auto operator<=>(const StepName&, const StepName&) = default;
};

// Nullopt unless it is exactly what text() writes.
std::optional<StepName> parse_step_name(std::string_view name);

struct AttemptName {
  int64_t step = 0;
  uint64_t attempt = 0;

  std::string text() const;
  friend auto operator<=>(const AttemptName&, const AttemptName&) = default;
};

std::optional<AttemptName> parse_attempt_name(std::string_view name);

// Of a step that is renamed away before it is removed; `mark` makes it unique.
std::string trash_name(const StepName& step, uint64_t mark);
bool is_trash_name(std::string_view name);

std::string pin_name(const StepName& step);

// 16 lower-case digits, as in names and documents.
std::string hex64(uint64_t number);
std::optional<uint64_t> parse_hex64(std::string_view digits);

// A name of a file inside a step folder: kInvalid if it is empty, longer than 255 bytes,
// leaves the folder, or has bytes that a terminal would obey.
Result<void> check_file_name(std::string_view name);

}  // namespace holdfast
