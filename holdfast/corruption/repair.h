// Mends damage of files and steps, exactly or not at all.
//
//   by seals   One damaged word of a tensor is found and mended by its seal, whether the
//              checksums of the file agree with the damage or not (inspect/seal_check.h).
//              The seals are those of a step, or those beside a file.
//   by a CRC   One flipped bit of a record is found by the change of its CRC: in .pt,
//              .npz and .keras files and in TensorFlow's checkpoints. No other data is
//              needed.
//
// Other damage can pass for one flipped bit: a random change of a record of n bytes does
// so with a probability of 8 n / 2^32. Where that is more than kMostOdds and no seal
// confirms the result, nothing is written.
//
// Whatever was mended is verified before it is kept.
#pragma once

#include <string>
#include <vector>

#include "holdfast/corruption/flip_plan.h"
#include "holdfast/inspect/open_any.h"

namespace holdfast {

inline constexpr double kMostOdds = 1e-3;

// Something that was mended.
struct Mended {
  std::string file{};
  std::string tensor{};  // empty if it is not known which tensor has the bytes
  // "[12, 7] bit 30: 7.25e+36 -> 0.0213, by its seal", or "byte 70: 58 -> 50, by the crc
  // of data/0".
  std::string what{};
  friend bool operator==(const Mended&, const Mended&) = default;
};

struct RepairReport {
  std::vector<Mended> mended{};
  // What was flipped back: flips of elements by seals, bytes by CRCs.
  FlipPlan flips{};

  bool whole() const { return mended.empty(); }  // nothing was damaged
};

// Finds out how to mend what was found, and changes nothing. Fails with kCorrupt, saying
// what is damaged and why it cannot be mended.
Result<RepairReport> plan_repair(Env& env, const Found& found);

// Mends the original. If the result is not whole, the change is undone, and the call
// fails with kCorrupt. Fails as alter_in_place() does.
Result<void> repair_in_place(Env& env, const Found& found, const RepairReport& report);

// Writes a mended copy to `to`, which must not exist. A copy that is not whole is not
// kept, and the call fails with kCorrupt.
Result<void> repair_copy(Env& env, const Found& found, const RepairReport& report,
                         const Path& to);

}  // namespace holdfast
