// After a rank was lost: which update the survivors continue after. A pure function.
//
// The gate (gate.h) guarantees three things. A rank writes to its tensors in update u
// only if it is committed to u. If one rank is committed to u, all ranks were ready for
// u. And a rank is ready for u only after it was committed to u - 1. So the survivors are
// at most one update apart, and those that are behind hold all that they need to catch
// up: nothing that was written has to be undone.
//
//   target = the highest update that a survivor is committed to, but never below the
//            target of an earlier decision, which survivors may have followed already
//
// The replacements of lost ranks are filled with the state after `target` updates. They
// count as survivors from then on, and as lost before.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace holdfast {

// What a survivor says of itself, after its gate was interrupted.
struct SurvivorStatus {
  int rank = 0;
  int64_t committed = 0;   // Gate::committed()
  int64_t ready = 0;       // Gate::ready()
  bool in_update = false;  // it has begun update committed + 1 and not ended it

  friend bool operator==(const SurvivorStatus&, const SurvivorStatus&) = default;
};

// What a survivor does next.
enum class Course {
  kGoOn,     // nothing: it is between two updates
  kForward,  // finish its own update, for which it was ready
  kBack,     // repeat the update that it has begun
};

// "go on", "forward", "back".
std::string_view name_of(Course course);

struct Decision {
  int64_t target = 0;             // all ranks continue after this update
  std::map<int, Course> courses;  // by rank
  // If not empty: why the survivors cannot go on. All ranks must then start again from
  // a checkpoint, and the other members mean nothing.
  std::string refused{};

  friend bool operator==(const Decision&, const Decision&) = default;
};

// `floor` is the target of the decision before this one, or 0.
Decision decide(std::span<const SurvivorStatus> survivors, int64_t floor = 0);

}  // namespace holdfast
