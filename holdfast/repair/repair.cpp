#include "holdfast/repair/repair.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "holdfast/corruption/alter.h"
#include "holdfast/repair/crc_repair.h"
#include "holdfast/repair/header_repair.h"
#include "holdfast/corruption/shared_storage.h"
#include "holdfast/repair/step_sources.h"
#include "holdfast/repair/reference_checkpoint.h"
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
                             change_text(broken.dtype, one.seen, one.sealed)),
         .rung = "seal"});
  }
}

// Adds the elements of a tensor in which a copy differs.
void add_differences(const Found& found, const Path& copy,
                     const std::vector<PlannedFlip>& flips, RepairReport& report) {
  if (flips.empty()) return;
  report.flips.flips.insert(report.flips.flips.end(), flips.begin(), flips.end());
  report.mended.push_back(
      {.file = found.path.filename().native(),
       .tensor = flips.front().tensor,
       .what = flips.size() == 1
                   ? fmt::format("{} {}: {}, from {}",
                                 fmt::format("[{}]", fmt::join(flips.front().index, ", ")),
                                 bits_in_words(flips.front().mask()),
                                 change_text(flips.front().dtype, flips.front().before,
                                             flips.front().after),
                                 copy.native())
                   : fmt::format("{} elements, from {}", flips.size(), copy.native()),
       .rung = "copy"});
}

// Mends a tensor of which more than one word is damaged, if the copy has the tensor with
// the same seal.
Result<void> add_by_copy(const Found& found, const Contents& contents,
                         const SealedTensor& sealed, const BrokenSeal& broken,
                         const ReferenceCheckpoint* copy, RepairReport& report) {
  if (copy == nullptr) {
    return corrupt("{}: {}: {}; expected another copy (--from) to mend it",
                   found.path.native(), broken.tensor, broken.what);
  }
  if (HOLDFAST_TRY(copy->seal_of(broken.tensor)) != sealed.seal) {
    return corrupt("{}: {}: {}, and {} has another seal, too; expected a copy",
                   found.path.native(), broken.tensor, broken.what,
                   copy->path().native());
  }
  add_differences(found, copy->path(),
                  HOLDFAST_TRY(copy->differences(contents, broken.tensor)), report);
  return {};
}

// If tensors share bytes, one damaged byte breaks several seals. Each byte is flipped back
// only once: leaves out flips whose bytes earlier ones change already, to the same values.
Result<void> drop_repeated(Env& env, const Found& found, const Contents& contents,
                           RepairReport& report) {
  std::vector<PlannedFlip>& flips = report.flips.flips;
  if (flips.size() < 2 || !SharedStorage::is_possible(contents)) return {};
  std::map<std::pair<Path, int64_t>, std::byte> changed;
  std::vector<PlannedFlip> once;
  for (const PlannedFlip& flip : flips) {
    const Flip one{flip.tensor, flip.element, flip.mask()};
    const Patch patch = HOLDFAST_TRY(
        found.format->plan_patch(env, found.path, {&one, 1}, Checksums::kRaw));
    bool repeated = true;
    for (const FilePatch& file : patch.files) {
      for (const Change& change : file.changes) {
        for (size_t i = 0; i < change.after.size(); ++i) {
          if (i < change.before.size() && change.before[i] == change.after[i]) continue;
          const int64_t offset = change.offset + static_cast<int64_t>(i);
          const auto [entry, added] =
              changed.try_emplace({file.file, offset}, change.after[i]);
          repeated = repeated && !added && entry->second == change.after[i];
        }
      }
    }
    if (!repeated) once.push_back(flip);
  }
  flips = std::move(once);
  return {};
}

Result<RepairReport> plan_by_seals(Env& env, const Found& found,
                                   std::span<const SealedTensor> seals,
                                   const ReferenceCheckpoint* copy) {
  const Contents contents = HOLDFAST_TRY(open_to_alter(env, found));
  const std::vector<BrokenSeal> all = HOLDFAST_TRY(check_seals(contents, seals));
  RepairReport report;
  report.flips.fault = "repair";
  for (const BrokenSeal& broken : all) {
    if (!broken.changes.empty()) {
      add_broken(found, broken, report);
      continue;
    }
    const auto sealed =
        std::ranges::find(seals, broken.tensor, &SealedTensor::name);
    HOLDFAST_TRY(add_by_copy(found, contents, *sealed, broken, copy, report));
  }
  if (!found.step()) HOLDFAST_TRY(drop_repeated(env, found, contents, report));
  return report;
}

// Damage that the digests of the file or step show.
Result<std::vector<Damage>> damage_of(Env& env, const Found& found) {
  std::vector<Verified> seen = HOLDFAST_TRY(verify(env, found.path));
  return std::move(seen.at(0).damage);
}

// `seals` are those of the original: a copy of a folder that was named by its index has
// another name.
Result<void> check_whole(Env& env, const Found& found,
                         std::span<const SealedTensor> seals) {
  const std::vector<Damage> damage = HOLDFAST_TRY(damage_of(env, found));
  const Contents contents = HOLDFAST_TRY(open_to_alter(env, found));
  const std::vector<BrokenSeal> broken = HOLDFAST_TRY(check_seals(contents, seals));
  if (damage.empty() && broken.empty()) return {};
  if (damage.empty()) {
    return corrupt(
        "{}: is not as it was sealed after it was mended: {}: {}",
        found.path.native(), broken.front().tensor, broken.front().what);
  }
  return corrupt("{}: is not whole after it was mended: {}",
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

std::vector<std::string> damaged_tensors(std::span<const Damage> damage) {
  std::vector<std::string> names;
  for (const Damage& one : damage) {
    for (const std::string& name : one.tensors) {
      // A tensor in two damaged parts is named twice.
      if (std::ranges::count(names, name) == 0) names.push_back(name);
    }
  }
  return names;
}

// Takes all elements of the damaged tensors that differ from a copy. Whether they are
// right shows when the file is verified.
Result<RepairReport> plan_by_copy(Env& env, const Found& found,
                                  const ReferenceCheckpoint& copy,
                                  std::span<const Damage> damage, const Error& why) {
  const Contents contents = HOLDFAST_TRY(open_to_alter(env, found));
  RepairReport report;
  for (const std::string& name : damaged_tensors(damage)) {
    add_differences(found, copy.path(), HOLDFAST_TRY(copy.differences(contents, name)),
                    report);
  }
  if (report.mended.empty()) return why;
  HOLDFAST_TRY(drop_repeated(env, found, contents, report));
  return report;
}

Result<RepairReport> plan_by_crc(Env& env, const Found& found,
                                 const ReferenceCheckpoint* copy,
                                 std::span<const Damage> damage) {
  Confirm confirm;
  if (copy != nullptr) {
    confirm = [&](const PlannedByte& byte) -> Result<bool> {
      const Contents contents = HOLDFAST_TRY(open_to_alter(env, found));
      return copy->confirms(env, found, contents, damaged_tensors(damage), byte);
    };
  }
  Result<CrcRepair> by_crc = find_by_crc(env, found, confirm);
  if (!by_crc.ok() && by_crc.error().code() == ErrorCode::kUnsupported) {
    // The format has no checksum that mends, but the file is damaged all the same.
    by_crc = corrupt("{}: {}{}; {}", found.path.native(), to_string(damage.front()),
                     damage.size() == 1
                         ? ""
                         : fmt::format(", and {} more parts are damaged (holdfast verify "
                                       "names them)",
                                       damage.size() - 1),
                     by_crc.error().message());
  }
  if (by_crc.ok() && by_crc->bytes.empty()) {
    by_crc = corrupt("{}: {}; expected another copy to mend it", found.path.native(),
                     to_string(damage.front()));
  }
  if (!by_crc.ok()) {
    if (copy == nullptr) return by_crc.error();
    return plan_by_copy(env, found, *copy, damage, by_crc.error());
  }
  RepairReport report;
  report.flips.bytes = std::move(by_crc->bytes);
  report.mended = std::move(by_crc->mended);
  return report;
}

// The records of a zip archive whose checksums are wrong; empty if its directory cannot be
// read, or if the file is none.
std::vector<Damage> damaged_records(Env& env, const Found& found) {
  const std::string_view format = found.format->name;
  if (format != "torch" && format != "npz" && format != "keras") return {};
  const Result<FormatReport> report = found.format->verify(env, found.path, {});
  return report.ok() ? report->damage : std::vector<Damage>();
}

// "chunk 17: ", or "chunk 17 (h.3.weight): " if the rest does not name the tensors.
std::string chunk_text(const MendedPart& part) {
  if (part.damage.chunk < 0) return "";
  const bool named = part.rung == "seal" || part.damage.tensors.empty();
  return named ? fmt::format("chunk {}: ", part.damage.chunk)
               : fmt::format("chunk {} ({}): ", part.damage.chunk,
                             fmt::join(part.damage.tensors, ", "));
}

// Climbs the ladder of a step. An empty report if its digests show no damage.
Result<RepairReport> plan_by_ladder(Env& env, const Found& found,
                                    const RepairSources& from) {
  RepairReport report;
  report.sources =
      HOLDFAST_TRY(StepSources::open(env, folder_of(found.path), from));
  report.step =
      HOLDFAST_TRY(plan_step_repair(env, found.path, report.sources->list()));
  for (const MendedPart& part : report.step.mended) {
    report.mended.push_back({.file = part.damage.file,
                             .what = chunk_text(part) + part.what,
                             .rung = part.rung});
  }
  report.lost = report.step.lost;
  report.from = from.from;
  return report;
}

// After its files have their digests again, a step may still have damage that the digests
// agree with: only the seals show it. Mends it, and returns what was mended.
Result<std::vector<Mended>> mend_by_seals(Env& env, const Found& found,
                                          const std::optional<Path>& from,
                                          FileLocks& locks) {
  const std::vector<SealedTensor> seals = HOLDFAST_TRY(seals_of(env, found));
  std::optional<ReferenceCheckpoint> copy;
  if (from) copy = HOLDFAST_TRY(ReferenceCheckpoint::open(env, *from));
  RepairReport report =
      HOLDFAST_TRY(plan_by_seals(env, found, seals, copy ? &*copy : nullptr));
  const auto is_whole = [&](Env& shown) { return check_whole(shown, found, seals); };
  HOLDFAST_TRY(report.changes()
                   ? alter_in_place(env, found, report.flips, Fixing::kConsistent,
                                    is_whole, locks)
                   : is_whole(env));
  return std::move(report.mended);
}

Result<std::vector<Mended>> mend_step(Env& env, const Found& found,
                                      const RepairReport& report, FileLocks& locks) {
  HOLDFAST_TRY(check_not_live(env, found));
  HOLDFAST_TRY(lock_files_of(env, found, LockKind::kExclusive, locks));
  HOLDFAST_TRY(apply_step_repair(env, report.step));
  Result<std::vector<Mended>> more = mend_by_seals(env, found, report.from, locks);
  if (more.ok()) return more;
  return corrupt("{}; the parts whose digests were wrong are mended",
                 more.error().message());
}

// Mends a copy of a step from the same sources as the original.
Result<std::vector<Mended>> mend_step_copy(Env& env, const Found& copy,
                                           const RepairReport& report) {
  const StepRepair repair =
      HOLDFAST_TRY(plan_step_repair(env, copy.path, report.sources->list()));
  if (!repair.lost.empty()) {
    return corrupt("{}: {}", copy.path.native(), to_string(repair.lost.front()));
  }
  HOLDFAST_TRY(apply_step_repair(env, repair));
  FileLocks locks;
  return mend_by_seals(env, copy, report.from, locks);
}

}  // namespace

bool RepairReport::changes() const {
  return !flips.flips.empty() || !flips.bytes.empty() || !step.files.empty();
}

Result<RepairReport> plan_repair(Env& env, const Found& found,
                                 const RepairSources& from) {
  RepairReport report;
  if (found.step()) {
    report = HOLDFAST_TRY(plan_by_ladder(env, found, from));
    if (report.changes() || !report.lost.empty()) return report;
  } else if (HOLDFAST_TRY(has_bad_header(env, found))) {
    // A record that cannot be understood may be damaged itself, which its checksum shows.
    const std::vector<Damage> damage = damaged_records(env, found);
    if (!damage.empty()) {
      report = HOLDFAST_TRY(plan_by_crc(env, found, nullptr, damage));
      report.flips.fault = "repair";
      return report;
    }
    Result<RepairReport> by_header = plan_by_header(
        env, found, {.time = from.search_time, .progress = from.progress});
    const bool lost = !by_header.ok() && by_header.error().code() == ErrorCode::kCorrupt;
    if (!lost || !from.from) return by_header;
    return corrupt("{}; {} was not used, because a copy does not mend a header",
                   by_header.error().message(), from.from->native());
  }
  std::optional<ReferenceCheckpoint> copy;
  if (from.from) copy = HOLDFAST_TRY(ReferenceCheckpoint::open(env, *from.from));
  const ReferenceCheckpoint* const reference = copy ? &*copy : nullptr;
  const std::vector<SealedTensor> seals = HOLDFAST_TRY(seals_of(env, found));
  if (!seals.empty()) {
    // What was right when it was read again is said, too.
    std::vector<Mended> reread = std::move(report.mended);
    report = HOLDFAST_TRY(plan_by_seals(env, found, seals, reference));
    report.mended.insert(report.mended.begin(), reread.begin(), reread.end());
    if (!report.whole()) return report;
  }
  const std::vector<Damage> damage = HOLDFAST_TRY(damage_of(env, found));
  if (damage.empty()) return report;
  report = HOLDFAST_TRY(plan_by_crc(env, found, reference, damage));
  report.flips.fault = "repair";
  return report;
}

Result<std::vector<Mended>> repair_in_place(Env& env, const Found& found,
                                            const RepairReport& report) {
  FileLocks locks;
  return repair_in_place(env, found, report, locks);
}

Result<std::vector<Mended>> repair_in_place(Env& env, const Found& found,
                                            const RepairReport& report,
                                            FileLocks& locks) {
  if (!report.lost.empty()) {
    return corrupt("{}: {}", found.path.native(), to_string(report.lost.front()));
  }
  if (!report.changes()) return std::vector<Mended>();
  if (!report.step.files.empty()) return mend_step(env, found, report, locks);
  const Fixing fixing = HOLDFAST_TRY(fixing_for(env, found, report));
  const std::vector<SealedTensor> seals = HOLDFAST_TRY(seals_of(env, found));
  const auto is_whole = [&](Env& shown) -> Result<void> {
    const Result<void> whole = check_whole(shown, found, seals);
    if (whole.ok()) return whole;
    return corrupt("{}; nothing was changed", whole.error().message());
  };
  HOLDFAST_TRY(alter_in_place(env, found, report.flips, fixing, is_whole, locks));
  return std::vector<Mended>();
}

Result<std::vector<Mended>> repair_copy(Env& env, const Found& found,
                                        const RepairReport& report, const Path& to) {
  if (!report.lost.empty()) {
    return corrupt("{}: {}", found.path.native(), to_string(report.lost.front()));
  }
  std::vector<Mended> more;
  if (!report.step.files.empty()) {
    HOLDFAST_TRY(make_copy(env, found, to, [&](const Found& copy) -> Result<void> {
      more = HOLDFAST_TRY(mend_step_copy(env, copy, report));
      return {};
    }));
    return more;
  }
  const Fixing fixing = HOLDFAST_TRY(fixing_for(env, found, report));
  const std::vector<SealedTensor> seals = HOLDFAST_TRY(seals_of(env, found));
  HOLDFAST_TRY(make_copy(env, found, to, [&](const Found& copy) -> Result<void> {
    HOLDFAST_TRY(alter_in_place(env, copy, report.flips, fixing));
    return check_whole(env, copy, seals);
  }));
  return more;
}

}  // namespace holdfast
