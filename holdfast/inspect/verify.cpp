#include "holdfast/inspect/verify.h"

#include <algorithm>

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/env/patient_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/inspect/open_any.h"
#include "holdfast/inspect/seal_check.h"
#include "holdfast/store/run.h"

namespace holdfast {
namespace {

Progress progress_of(const VerifyOptions& options, const Path& path) {
  return options.progress ? options.progress(path) : Progress();
}

void add_broken(const Path& path, std::span<const BrokenSeal> broken,
                Verified& verified) {
  for (const BrokenSeal& one : broken) {
    verified.damage.push_back(
        {.file = path.filename().native(), .tensors = {one.tensor}, .what = one.what});
  }
  verified.sealed = true;
}

Result<void> check_seals_of_step(Env& env, const Path& folder,
                                 const VerifyOptions& options, Verified& verified) {
  PatientEnv patient(env);
  const std::vector<SealedTensor> seals = HOLDFAST_TRY(seals_of_step(patient, folder));
  const Contents contents = HOLDFAST_TRY(open_step_contents(patient, folder));
  add_broken(folder,
             HOLDFAST_TRY(check_seals(contents, seals, progress_of(options, folder))),
             verified);
  verified.bytes_read += contents.collection.bytes();
  return {};
}

Result<Verified> verify_digests(Env& env, const Path& folder,
                                const VerifyOptions& options) {
  StepReport report = HOLDFAST_TRY(
      check_step(env, folder, options.depth, progress_of(options, folder)));
  return Verified{.path = folder,
                  .kind = "step",
                  .damage = std::move(report.damage),
                  .extra = std::move(report.extra),
                  .bytes_read = report.bytes_read,
                  .digests = options.depth == Depth::kFull};
}

Result<Verified> verify_step(Env& env, const Path& folder,
                             const VerifyOptions& options) {
  Verified verified = HOLDFAST_TRY(verify_digests(env, folder, options));
  if (options.seals && verified.whole()) {
    HOLDFAST_TRY(check_seals_of_step(env, folder, options, verified));
  }
  return verified;
}

// Checks all checksums of a file, if its format has some, and that it can be opened.
Result<void> check_format(Env& env, const Found& found, const VerifyOptions& options,
                          Verified& verified) {
  PatientEnv patient(env);
  if (found.format->verify != nullptr && options.depth == Depth::kFull) {
    FormatReport report = HOLDFAST_TRY(
        found.format->verify(patient, found.path, progress_of(options, found.path)));
    verified.bytes_read = report.bytes_read;
    verified.digests = report.checked;
    verified.damage = std::move(report.damage);
  }
  if (verified.damage.empty()) HOLDFAST_TRY(open_found(env, found));
  return {};
}

// Compares the tensors with the seals beside the file, if there are some. Tensors that
// cannot be read are damage that check_format() has found already.
Result<void> check_seals_beside(Env& env, const Found& found,
                                const VerifyOptions& options, Verified& verified) {
  if (options.depth != Depth::kFull) return {};
  const Result<std::vector<SealedTensor>> seals = read_seals(env, found.path);
  if (!seals.ok() && is_missing(seals.error())) return {};
  const Result<Contents> contents = open_found(env, found);
  if (!contents.ok()) return {};
  const Result<std::vector<BrokenSeal>> broken =
      seals.ok() ? check_seals(*contents, *seals, progress_of(options, found.path))
                 : seals.error();
  if (!broken.ok() && !verified.damage.empty()) return {};
  if (!seals.ok() && seals.error().code() == ErrorCode::kCorrupt) {
    verified.damage.push_back({.file = seals_path(found.path).filename().native(),
                               .what = seals.error().message()});
    return {};
  }
  if (!broken.ok()) return broken.error();
  add_broken(found.path, *broken, verified);
  verified.bytes_read += contents->collection.bytes();
  verified.digests =
      verified.digests || seals->size() == contents->collection.tensors().size();
  return {};
}

Result<void> check_file(Env& env, const Found& found, const VerifyOptions& options,
                        Verified& verified) {
  HOLDFAST_TRY(check_format(env, found, options, verified));
  return check_seals_beside(env, found, options, verified);
}

Result<Verified> verify_file(Env& env, const Found& found,
                             const VerifyOptions& options) {
  Verified verified{.path = found.path, .kind = std::string(found.kind())};
  const Result<void> looked = check_file(env, found, options, verified);
  if (looked.ok()) return verified;
  if (looked.error().code() != ErrorCode::kCorrupt) return looked.error();
  const Result<FileInfo> info = env.info(found.path);
  verified.damage.push_back({.file = found.path.filename().native(),
                             .bytes = info.ok() ? info->size : 0,
                             .what = looked.error().message()});
  return verified;
}

// Called for a file whose format is not recognised by its contents. If its name is that
// of a safetensors file, it is damaged (empty or zeroed, for example). Other suffixes
// such as .bin are used for many things, so a file with such a name counts as damaged
// only if it is empty.
Result<Found> find_by_name(Env& env, const Path& path, const Error& unrecognised) {
  if (unrecognised.code() != ErrorCode::kUnsupported) return unrecognised;
  const FileInfo info = HOLDFAST_TRY(env.info(path));
  const Result<const Format*> format = format_for(path);
  if (info.folder || !format.ok()) return unrecognised;
  if (info.size > 0 && (*format)->name != "safetensors") return unrecognised;
  return Found{.path = path, .format = *format};
}

Result<Found> find_to_verify(Env& env, const Path& path) {
  Result<Found> found = find_any(env, path);
  return found.ok() ? std::move(found) : find_by_name(env, path, found.error());
}

// Verifies a step and adds the result to `all`. A step that retention has removed
// meanwhile is left out. A step that the disk does not return is damaged.
Result<void> add_step(Env& env, const Path& folder, const VerifyOptions& options,
                      std::vector<Verified>& all) {
  Result<Verified> verified = verify_step(env, folder, options);
  if (verified.ok()) {
    all.push_back(*std::move(verified));
    return {};
  }
  if (verified.error().code() == ErrorCode::kNotFound) return {};
  if (verified.error().code() != ErrorCode::kCorrupt) return verified.error();
  all.push_back({.path = folder,
                 .kind = "step",
                 .damage = {{.what = verified.error().message()}}});
  return {};
}

// The damage of holdfast.json and of the owner files; nullopt if they are whole.
std::optional<Verified> damaged_run_files(const Run& run) {
  Verified files{.path = run.path(), .kind = "run"};
  if (run.damage()) {
    files.damage.push_back(
        {.file = std::string(kRunFile), .what = run.damage()->message()});
  }
  const Result<std::optional<OwnerRecord>> owner = read_owner(run.env(), run.path());
  if (!owner.ok() && owner.error().code() == ErrorCode::kCorrupt) {
    files.damage.push_back(
        {.file = std::string(kOwnerFile), .what = owner.error().message()});
  }
  return files.whole() ? std::nullopt : std::optional(std::move(files));
}

// Adds a step folder that Run::steps() has skipped. Its files may match their manifest
// although the manifest belongs to another run or step: this is damage too.
Result<void> add_skipped(Env& env, const Path& run, const SkippedStep& skipped,
                         const VerifyOptions& options, std::vector<Verified>& all) {
  HOLDFAST_TRY(add_step(env, run / skipped.folder, options, all));
  const bool fenced = skipped.error.code() == ErrorCode::kConflict;
  if (fenced || all.empty() || !all.back().whole()) return {};
  if (all.back().path != run / skipped.folder) return {};
  all.back().damage.push_back(
      {.file = std::string(kManifestName), .what = skipped.error.message()});
  return {};
}

// Verifies all steps. If it cannot be told whether one step is whole, the others are
// verified all the same, and the error is returned only if no damage was found.
Result<std::vector<Verified>> verify_run(Env& env, const Path& path,
                                         const VerifyOptions& options) {
  const Run run = HOLDFAST_TRY(Run::open(env, path));
  const StepList list = HOLDFAST_TRY(run.steps());
  std::vector<Verified> all;
  std::optional<Error> unknown;
  const auto keep_first = [&](const Result<void>& added) {
    if (!added.ok() && !unknown) unknown = added.error();
  };
  for (const Step& step : list.steps) {
    keep_first(add_step(env, step.folder, options, all));
  }
  for (const SkippedStep& skipped : list.skipped) {
    keep_first(add_skipped(env, path, skipped, options, all));
  }
  if (unknown && std::ranges::all_of(all, &Verified::whole)) return *unknown;
  if (all.empty()) return not_found("{}: has no steps", path.native());
  if (auto files = damaged_run_files(run)) all.push_back(*std::move(files));
  return all;
}

}  // namespace

Result<std::vector<Verified>> verify(Env& env, const Path& path,
                                     const VerifyOptions& options) {
  if (is_run(env, path)) return verify_run(env, path, options);
  const Found found = HOLDFAST_TRY(find_to_verify(env, path));
  std::vector<Verified> one;
  one.push_back(HOLDFAST_TRY(found.step() ? verify_step(env, found.path, options)
                                          : verify_file(env, found, options)));
  return one;
}

}  // namespace holdfast
