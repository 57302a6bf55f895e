#include "holdfast/recovery/decide.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast {
namespace {

// Why no rank that follows the protocol can have this status; empty if one can.
std::string find_fault(const SurvivorStatus& status, int64_t target) {
  const auto& [rank, committed, ready, in_update] = status;
  if (committed < 0 || ready < committed || ready > committed + 1) {
    return fmt::format(
        "rank {} is committed to update {} and ready for update {}; expected it to be "
        "ready for that update or for the next one",
        rank, committed, ready);
  }
  if (committed == target || (committed == target - 1 && ready == target)) return "";
  return fmt::format(
      "rank {} is committed to update {} and ready for update {}; expected it to be "
      "committed to update {} or ready for it",
      rank, committed, ready, target);
}

Course course_of(const SurvivorStatus& status, int64_t target) {
  if (status.committed < target) return Course::kForward;
  return status.in_update ? Course::kBack : Course::kGoOn;
}

}  // namespace

std::string_view name_of(Course course) {
  switch (course) {
    case Course::kGoOn: return "go on";
    case Course::kForward: return "forward";
    case Course::kBack: return "back";
  }
  return "";
}

Decision decide(std::span<const SurvivorStatus> survivors, int64_t floor) {
  Decision decision{.target = floor, .courses = {}};
  if (survivors.empty()) {
    decision.refused = "no rank has survived";
    return decision;
  }
  for (const SurvivorStatus& status : survivors) {
    decision.target = std::max(decision.target, status.committed);
  }
  for (const SurvivorStatus& status : survivors) {
    std::string fault = find_fault(status, decision.target);
    if (!decision.courses.emplace(status.rank, course_of(status, decision.target))
             .second) {
      fault = fmt::format("rank {} has sent two statuses; expected one", status.rank);
    }
    if (decision.refused.empty()) decision.refused = std::move(fault);
  }
  return decision;
}

}  // namespace holdfast
