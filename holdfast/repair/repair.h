// Mends damage of files and steps, exactly or not at all.
//
//   steps      A ladder of sources gives the right bytes of each damaged chunk: the seals
//              and CRCs of the step, its copies in tiers, other steps of the run, another
//              checkpoint, parity (repair/step_repair.h). If the digests of the step
//              agree with the damage, its seals still show it, and mend one word.
//   by seals   One damaged word of a tensor is found and mended by the seals beside a
//              file, whether the checksums of the file agree with the damage or not
//              (inspect/seal_check.h).
//   by a CRC   One flipped bit of a record is found by the change of its CRC: in .pt,
//              .npz and .keras files and in TensorFlow's checkpoints. No other data is
//              needed.
//   header     The one bit of a zip directory, a safetensors header, an HDF5 superblock or
//              a TensorFlow index with which the file can be read again and verifies
//              (header_repair.h).
//   by a copy  The elements that differ from those of another checkpoint are taken from
//              there, if the seals or CRCs of the file then fit.
//
// Other damage can pass for one flipped bit: a random change of a record of n bytes does
// so with a probability of 8 n / 2^32. Where that is more than kMostOdds (bit_search.h),
// and neither a seal nor a copy confirms the result, nothing is written.
//
// Whatever was mended is verified before it is kept.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holdfast/base/variables.h"
#include "holdfast/corruption/flip_plan.h"
#include "holdfast/inspect/open_any.h"
#include "holdfast/repair/step_repair.h"

namespace holdfast {

// Something that was mended.
struct Mended {
  std::string file{};
  std::string tensor{};  // empty if it is not known which tensor has the bytes
  // "[12, 7] bit 30: 7.25e+36 -> 0.0213, by its seal", or "byte 70: 58 -> 50, by the crc
  // of data/0".
  std::string what{};
  // What mended it: "seal", "crc", "copy", or a rung of the ladder of steps.
  std::string rung{};
  friend bool operator==(const Mended&, const Mended&) = default;
};

// The places besides the checkpoint itself where repair looks for right bytes.
struct RepairSources {
  // Names of tiers (store/tier.h) that may have the same step.
  std::vector<std::string> tiers{};
  // Looks up the keys and the server of object stores.
  Variables variables{};
  // Another checkpoint of any kind with the same tensors.
  std::optional<Path> from{};
  // How long a flipped bit is looked for in the header of a file, and who is told how many
  // bits were tried.
  Duration search_time = std::chrono::seconds(30);
  Progress progress{};
};

// What a step is mended from, opened.
class StepSources;

struct RepairReport {
  std::vector<Mended> mended{};
  // What cannot be mended. If there is something, nothing may be mended.
  std::vector<LostPart> lost{};
  // What was flipped back: flips of elements by seals or a copy, bytes by CRCs.
  FlipPlan flips{};
  // For a step whose digests show the damage. Shared with the functions of the repair.
  std::shared_ptr<const StepSources> sources{};
  StepRepair step{};
  std::optional<Path> from{};  // for a step: as in RepairSources

  bool whole() const { return mended.empty() && lost.empty(); }
  // Whether something has to be written. False if all that was damaged was right when it
  // was read again.
  bool changes() const;
};

// find_any() for what may be damaged: also finds a step whose manifest cannot be read, and
// a file whose format only its name tells.
Result<Found> find_to_repair(Env& env, const Path& path);

// The tiers that the run of a step has been copied to, by its event log. Empty for
// anything else.
std::vector<std::string> recorded_tiers(Env& env, const Found& found);

// Finds out how to mend what was found, and changes nothing. Parts of a step that cannot
// be mended are in the report. Other failures: kCorrupt, saying what is damaged and why it
// cannot be mended.
Result<RepairReport> plan_repair(Env& env, const Found& found,
                                 const RepairSources& from = {});

// Mends the original. Returns what was mended besides what the report says: damage of a
// step with which its digests agree shows only in its seals, after the rest was mended.
// If the result would not be whole, the call fails with kCorrupt before it writes; but
// files of a step that have their digests again stay. Fails as alter_in_place() does.
// `locks` are those that the caller took before it planned.
Result<std::vector<Mended>> repair_in_place(Env& env, const Found& found,
                                            const RepairReport& report,
                                            FileLocks& locks);
Result<std::vector<Mended>> repair_in_place(Env& env, const Found& found,
                                            const RepairReport& report);

// Writes a mended copy to `to`, which must not exist, and returns the same. A copy that is
// not whole is not kept, and the call fails with kCorrupt.
Result<std::vector<Mended>> repair_copy(Env& env, const Found& found,
                                        const RepairReport& report, const Path& to);

}  // namespace holdfast
