#include "holdfast/corruption/alter.h"

#include <algorithm>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/checkpoint/verified_source.h"
#include "holdfast/contents/file_edit.h"
#include "holdfast/contents/patched_env.h"
#include "holdfast/corruption/shared_storage.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/list_runs.h"
#include "holdfast/shard/step_name.h"
#include "holdfast/inspect/seal_file.h"
#include "holdfast/corruption/step_patch.h"

namespace holdfast {
namespace {

Result<Patch> plan_bytes(Env& env, const Found& found, const FlipPlan& plan) {
  const std::vector<NamedFile> files = HOLDFAST_TRY(files_of(env, found));
  const FileInfo info = HOLDFAST_TRY(env.info(found.path));
  PatchPlan patch(env, info.folder ? found.path / "" : found.path);
  for (const PlannedByte& byte : plan.bytes) {
    if (files.size() == 1 && byte.file != plan.bytes.front().file) {
      return conflict("{}: is one file; expected those of the plan, {} and {}",
                      found.path.native(), plan.bytes.front().file, byte.file);
    }
    // The copy of a single file may have another name.
    const auto file = files.size() == 1
                          ? files.begin()
                          : std::ranges::find(files, byte.file, &NamedFile::name);
    if (file == files.end()) {
      return not_found("{}: there is no file of this name; expected those of the plan",
                       byte.file);
    }
    FileEdit& edit = *HOLDFAST_TRY(patch.edit(file->path));
    if (byte.offset >= edit.size()) {
      return conflict("{}: has {} bytes; expected more than {}, as in the plan",
                      file->path.native(), edit.size(), byte.offset);
    }
    const std::byte seen = HOLDFAST_TRY(edit.read_bytes(byte.offset, 1))[0];
    if (seen != byte.before) {
      return conflict("{}: byte {} is {}; expected {}, as in the plan",
                      file->path.native(), byte.offset, to_hex(seen),
                      to_hex(byte.before));
    }
    const std::byte mask = byte.before ^ byte.after;
    HOLDFAST_TRY(edit.flip(byte.offset, ByteView(&mask, 1)));
  }
  return std::move(patch).finish();
}

// The seal of a tensor that shares bytes with a flipped one would change, too, and nobody
// says which of its elements has changed.
Result<void> check_not_shared(Env& env, const Found& found, const FlipPlan& plan) {
  const Contents contents = HOLDFAST_TRY(open_to_alter(env, found));
  if (!SharedStorage::is_possible(contents)) return {};
  const Collection& collection = contents.collection;
  for (const PlannedFlip& flip : plan.flips) {
    const auto id = collection.find(flip.tensor);
    if (!id) continue;
    for (TensorId other = 0; other < collection.tensors().size(); ++other) {
      if (other == *id) continue;
      const std::array<TensorId, 2> pair{other, *id};
      if (!SharedStorage(contents, pair).is_taken(*id, flip.element)) continue;
      return unsupported(
          "{} {}: shares its bytes with {}; expected raw or consistent checksums, or "
          "another element",
          flip.tensor, index_text(collection.tensor(*id).shape, flip.element),
          collection.tensor(other).name);
    }
  }
  return {};
}

// The seals of a file after the flips.
Result<Bytes> new_seals(Env& env, const Found& found, const FlipPlan& plan) {
  Result<std::vector<SealedTensor>> seals = read_seals(env, found.path);
  if (!seals.ok() && seals.error().code() == ErrorCode::kNotFound) {
    return invalid(
        "{}: has no seals that could change; expected raw or consistent "
        "checksums, or seals beside it (holdfast seal)",
        found.path.native());
  }
  if (!seals.ok()) return seals.error();
  HOLDFAST_TRY(check_not_shared(env, found, plan));
  for (const PlannedFlip& flip : plan.flips) {
    const auto sealed = std::ranges::find(*seals, flip.tensor, &SealedTensor::name);
    if (sealed == seals->end()) {
      return invalid(
          "{}: the seals beside the file do not have it; expected all tensors",
          flip.tensor);
    }
    const auto size = static_cast<size_t>(bytes_of(flip.dtype));
    const auto at = static_cast<uint64_t>(flip.element) * size;
    const Seal before = seal_bytes(ByteView(flip.before).first(size), at);
    const Seal after = seal_bytes(ByteView(flip.after).first(size), at);
    for (size_t j = 0; j < after.lanes.size(); ++j) {
      sealed->seal.lanes[j] += after.lanes[j] - before.lanes[j];
    }
  }
  return encode_seals(*seals);
}

// What will change.
struct Alteration {
  Patch patch;
  // The seals beside a folder, if they change: the journal of a patch lies in the folder,
  // so they are replaced after it.
  std::optional<Bytes> seals{};
};

Result<Alteration> plan_file(Env& env, const Found& found, const FlipPlan& plan,
                             Fixing fixing) {
  if (!found.format->can_patch()) {
    return unsupported("{}: the format {} can be read, but not patched",
                       found.path.native(), found.format->name);
  }
  const Checksums checksums =
      fixing == Fixing::kRaw ? Checksums::kRaw : Checksums::kConsistent;
  Alteration made{.patch = HOLDFAST_TRY(found.format->plan_patch(
                      env, found.path, flips_of(plan), checksums))};
  if (fixing != Fixing::kSealed) return made;
  Bytes seals = HOLDFAST_TRY(new_seals(env, found, plan));
  const Path path = seals_path(found.path);
  const Path& patched = made.patch.path;
  const Path folder = patched.has_filename() ? folder_of(patched) : patched.parent_path();
  if (folder_of(path) != folder) {
    made.seals = std::move(seals);
    return made;
  }
  PatchPlan beside(env, patched);
  HOLDFAST_TRY(HOLDFAST_TRY(beside.edit(path))->write_tail(0, seals));
  Patch more = std::move(beside).finish();
  std::ranges::move(more.files, std::back_inserter(made.patch.files));
  return made;
}

Result<Alteration> plan_step(Env& env, const Found& found, const FlipPlan& plan,
                             Fixing fixing) {
  const StepPatchOptions options{
      .checksums = fixing == Fixing::kRaw ? Checksums::kRaw : Checksums::kConsistent,
      .seals = fixing == Fixing::kSealed};
  return Alteration{
      .patch = HOLDFAST_TRY(plan_step_patch(env, found.path, flips_of(plan), options))};
}

// Checks that the plan fits, and computes what changes.
Result<Alteration> plan_alteration(Env& env, const Found& found, const FlipPlan& plan,
                                   Fixing fixing) {
  if (!plan.bytes.empty()) {
    if (fixing != Fixing::kRaw) {
      return invalid(
          "flips anywhere in a file with {} checksums; expected raw ones, because a "
          "checksum may be hit itself",
          name_of(fixing));
    }
    return Alteration{.patch = HOLDFAST_TRY(plan_bytes(env, found, plan))};
  }
  HOLDFAST_TRY(check_plan(HOLDFAST_TRY(open_to_alter(env, found)), plan));
  return found.step() ? plan_step(env, found, plan, fixing)
                      : plan_file(env, found, plan, fixing);
}

Result<void> alter(Env& env, const Found& found, const FlipPlan& plan, Fixing fixing,
                   const CheckAltered& check, FileLocks& locks) {
  HOLDFAST_TRY(lock_files_of(env, found, LockKind::kExclusive, locks));
  const Alteration made = HOLDFAST_TRY(plan_alteration(env, found, plan, fixing));
  if (check) {
    PatchedEnv shown(env, made.patch);
    HOLDFAST_TRY(check(shown));
  }
  HOLDFAST_TRY(apply_patch(env, made.patch, locks));
  if (!made.seals) return {};
  return env.replace_file(seals_path(found.path), *made.seals);
}

}  // namespace

std::string_view name_of(Fixing fixing) {
  switch (fixing) {
    case Fixing::kRaw: return "raw";
    case Fixing::kConsistent: return "consistent";
    case Fixing::kSealed: return "sealed";
  }
  return "";
}

Result<Fixing> parse_fixing(std::string_view name) {
  for (const Fixing fixing : {Fixing::kRaw, Fixing::kConsistent, Fixing::kSealed}) {
    if (name_of(fixing) == name) return fixing;
  }
  return invalid("checksums \"{}\": expected raw, consistent or sealed", name);
}

Result<std::shared_ptr<const Roles>> roles_in(const Contents& contents,
                                              const Found& found, const RoleMap& map) {
  auto roles = std::make_shared<Roles>(find_roles(contents, found.step()));
  HOLDFAST_TRY(give_roles(map, contents.collection, *roles));
  return std::shared_ptr<const Roles>(std::move(roles));
}

Result<Contents> open_to_alter(Env& env, const Found& found) {
  if (!found.step()) return found.format->open(env, found.path);
  StepFiles step = HOLDFAST_TRY(open_step(env, found.path));
  std::vector<std::shared_ptr<const Source>> sources;
  for (ShardFile& file : step.files) {
    const Path path = found.path / file.name;
    if (file.packed.empty()) {
      sources.push_back(HOLDFAST_TRY(FileSource::open(env, path)));
    } else {
      sources.push_back(HOLDFAST_TRY(VerifiedSource::open(env, path, std::move(file))));
    }
  }
  return Contents{.collection = std::move(step.collection),
                  .sources = std::move(sources),
                  .objects = {},
                  .metadata = {}};
}

Result<void> check_alteration(Env& env, const Found& found, const FlipPlan& plan,
                              Fixing fixing) {
  HOLDFAST_TRY(plan_alteration(env, found, plan, fixing));
  return {};
}

Result<void> check_not_live(Env& env, const Found& found) {
  const Path step = found.step() ? found.path : folder_of(found.path);
  if (!is_step(env, step)) return {};
  const auto owner = view_owner(env, folder_of(step));
  if (!owner || owner->dead) return {};
  return conflict(
      "{}: belongs to a run that process {} on {} writes; expected a run that nobody "
      "writes, or a copy",
      step.native(), owner->record.who.pid, owner->record.who.host);
}

Result<void> alter_in_place(Env& env, const Found& found, const FlipPlan& plan,
                            Fixing fixing, const CheckAltered& check,
                            FileLocks& locks) {
  HOLDFAST_TRY(check_not_live(env, found));
  return alter(env, found, plan, fixing, check, locks);
}

Result<void> alter_in_place(Env& env, const Found& found, const FlipPlan& plan,
                            Fixing fixing, const CheckAltered& check) {
  FileLocks locks;
  return alter_in_place(env, found, plan, fixing, check, locks);
}

Result<void> alter_copy(Env& env, const Found& found, const FlipPlan& plan,
                        Fixing fixing, const Path& to) {
  return make_copy(env, found, to, [&](const Found& copy) {
    FileLocks locks;
    return alter(env, copy, plan, fixing, {}, locks);
  });
}

}  // namespace holdfast
