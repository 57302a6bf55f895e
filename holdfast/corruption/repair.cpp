#include "holdfast/corruption/repair.h"

#include <algorithm>

#include "holdfast/corruption/alter.h"
#include "holdfast/corruption/crc_repair.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/seal_check.h"
#include "holdfast/inspect/verify.h"

namespace holdfast {
namespace {

// The seals of what was found; empty if there are none.
Result<std::vector<SealedTensor>> seals_of(Env& env, const Found& found) {
  if (!found.step()) {
    Result<std::vector<SealedTensor>> seals = read_seals(env, found.path);
    const bool none = !seals.ok() && is_missing(seals.error());
    return none ? std::vector<SealedTensor>() : std::move(seals);
  }
  return seals_of_step(env, found.path);
}

void add_broken(const Found& found, const BrokenSeal& broken, RepairReport& report) {
  for (const ChangedElement& one : broken.changes) {
    const PlannedFlip flip{.tensor = broken.tensor,
                           .element = one.element,
                           .index = index_of(broken.shape, one.element),
                           .dtype = broken.dtype,
                           .before = one.seen,
                           .after = one.sealed};
    report.flips.flips.push_back(flip);
    report.mended.push_back(
        {.file = found.path.filename().native(),
         .tensor = broken.tensor,
         .what = fmt::format("{} {}: {}, by its seal",
                             index_text(broken.shape, one.element),
                             bits_in_words(flip.mask()),
                             change_text(broken.dtype, one.seen, one.sealed))});
  }
}

Result<RepairReport> plan_by_seals(Env& env, const Found& found,
                                   std::span<const SealedTensor> seals) {
  const Contents contents = HOLDFAST_TRY(open_to_alter(env, found));
  const std::vector<BrokenSeal> all = HOLDFAST_TRY(check_seals(contents, seals));
  RepairReport report;
  report.flips.fault = "repair";
  for (const BrokenSeal& broken : all) {
    if (broken.changes.empty()) {
      return corrupt("{}: {}: {}; expected another copy to mend it",
                     found.path.native(), broken.tensor, broken.what);
    }
    add_broken(found, broken, report);
  }
  return report;
}

// Damage that the digests of the file or step show.
Result<std::vector<Damage>> damage_of(Env& env, const Found& found) {
  std::vector<Verified> seen = HOLDFAST_TRY(verify(env, found.path));
  return std::move(seen.at(0).damage);
}

Result<void> check_whole(Env& env, const Found& found) {
  const std::vector<Damage> damage = HOLDFAST_TRY(damage_of(env, found));
  const std::vector<SealedTensor> seals = HOLDFAST_TRY(seals_of(env, found));
  const Contents contents = HOLDFAST_TRY(open_to_alter(env, found));
  const std::vector<BrokenSeal> broken = HOLDFAST_TRY(check_seals(contents, seals));
  if (damage.empty() && broken.empty()) return {};
  if (damage.empty()) {
    return corrupt(
        "{}: is not as it was sealed after it was mended, so nothing was "
        "changed: {}: {}",
        found.path.native(), broken.front().tensor, broken.front().what);
  }
  return corrupt("{}: is not whole after it was mended, so nothing was changed: {}",
                 found.path.native(), to_string(damage.front()));
}

// If the checksums show the damage, they are those of the undamaged bytes and stay. If
// they do not, they were computed from damaged bytes and are made right.
Result<Fixing> fixing_for(Env& env, const Found& found, const RepairReport& report) {
  if (!report.flips.bytes.empty()) return Fixing::kRaw;
  if (found.step()) {
    const std::vector<Damage> damage = HOLDFAST_TRY(damage_of(env, found));
    return damage.empty() ? Fixing::kConsistent : Fixing::kRaw;
  }
  if (found.format->verify == nullptr) return Fixing::kRaw;
  const FormatReport seen = HOLDFAST_TRY(found.format->verify(env, found.path, {}));
  return seen.damage.empty() ? Fixing::kConsistent : Fixing::kRaw;
}

}  // namespace

Result<RepairReport> plan_repair(Env& env, const Found& found) {
  const std::vector<SealedTensor> seals = HOLDFAST_TRY(seals_of(env, found));
  RepairReport report;
  if (!seals.empty()) {
    report = HOLDFAST_TRY(plan_by_seals(env, found, seals));
    if (!report.whole()) return report;
  }
  const std::vector<Damage> damage = HOLDFAST_TRY(damage_of(env, found));
  if (damage.empty()) return report;
  if (found.step()) {
    return corrupt(
        "{}: {}; the tensors are as they were sealed, and expected is another "
        "copy of this file",
        found.path.native(), to_string(damage.front()));
  }
  CrcRepair by_crc = HOLDFAST_TRY(find_by_crc(env, found));
  if (by_crc.bytes.empty()) {
    return corrupt("{}: {}; expected another copy to mend it", found.path.native(),
                   to_string(damage.front()));
  }
  report.flips.fault = "repair";
  report.flips.bytes = std::move(by_crc.bytes);
  report.mended = std::move(by_crc.mended);
  return report;
}

Result<void> repair_in_place(Env& env, const Found& found, const RepairReport& report) {
  const Fixing fixing = HOLDFAST_TRY(fixing_for(env, found, report));
  HOLDFAST_TRY(alter_in_place(env, found, report.flips, fixing));
  const Result<void> whole = check_whole(env, found);
  if (!whole.ok()) {
    HOLDFAST_TRY(alter_in_place(env, found, inverse(report.flips), fixing));
  }
  return whole;
}

Result<void> repair_copy(Env& env, const Found& found, const RepairReport& report,
                         const Path& to) {
  const Fixing fixing = HOLDFAST_TRY(fixing_for(env, found, report));
  return make_copy(env, found, to, [&](const Found& copy) -> Result<void> {
    HOLDFAST_TRY(alter_in_place(env, copy, report.flips, fixing));
    return check_whole(env, copy);
  });
}

}  // namespace holdfast
