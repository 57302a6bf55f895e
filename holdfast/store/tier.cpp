#include "holdfast/store/tier.h"

#include <algorithm>

#include "holdfast/base/crc32c.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/remote/s3_store.h"
#include "holdfast/store/location.h"
#include "holdfast/store/object_store_run.h"
#include "holdfast/store/retention.h"
#include "holdfast/store/run.h"

namespace holdfast {
namespace {

constexpr int64_t kBlock = int64_t{4} << 20;

// Computes the digest of bytes that arrive in order, in the form that a manifest has.
class FileDigest {
 public:
  explicit FileDigest(DigestKind kind) : kind_(kind) {}

  void add(ByteView bytes) {
    if (kind_ == DigestKind::kCrc32c) {
      crc_ = crc32c_extend(crc_, bytes);
    } else {
      small_.insert(small_.end(), bytes.begin(), bytes.end());
    }
  }
  std::string text() const {
    return kind_ == DigestKind::kCrc32c ? crc_digest(crc_) : xxh3_digest(small_);
  }

 private:
  const DigestKind kind_;
  Crc32c crc_ = 0;
  // The bytes so far, for an XXH3 digest. Files with such a digest are small: indexes
  // and objects.
  Bytes small_;
};

// What goes wrong where a step is written tells nothing about the step. It must not look
// like its damage, because then an older step would be taken instead.
template <typename T>
Result<T> writing(Result<T> done) {
  if (done.ok() || !is_damage(done.error())) return done;
  return done.error().as(ErrorCode::kUnavailable);
}

Result<void> copy_file(const ManifestFile& file, const Source& from, Sink& to) {
  if (from.size() != file.bytes) {
    return corrupt("{}: {} bytes; expected {}", from.name(), from.size(), file.bytes);
  }
  FileDigest digest(HOLDFAST_TRY(parse_file_digest(file.digest)));
  for (int64_t at = 0; at < file.bytes; at += kBlock) {
    const Bytes block =
        HOLDFAST_TRY(from.read_bytes(at, std::min(kBlock, file.bytes - at)));
    digest.add(block);
    HOLDFAST_TRY(writing(to.append(block)));
  }
  if (digest.text() == file.digest) return {};
  return corrupt("{}: has {}; expected {}", from.name(), digest.text(), file.digest);
}

class FolderTier : public StorageTier {
 public:
  FolderTier(Env& env, Path run)
      : env_(env), path_(std::move(run)), name_(path_.native()) {}

  const std::string& name() const override { return name_; }

  Result<TierSteps> list() override {
    const Result<Run> run = Run::open(env_, path_);
    if (!run.ok()) return list_without_run_file(run.error());
    StepList all = HOLDFAST_TRY(run->steps());
    const std::set<StepName> pinned = HOLDFAST_TRY(pinned_steps(*run));
    TierSteps found;
    for (Step& step : all.steps) {
      Result<Bytes> bytes = env_.read_file(step.folder / kManifestName);
      const std::string id = step.folder.filename().native();
      if (!bytes.ok()) {
        const bool is_gone = is_missing(bytes.error());
        if (!is_gone) found.unusable.push_back({id, bytes.error()});
        continue;
      }
      found.steps.push_back({.id = id,
                             .manifest = std::move(step.manifest),
                             .manifest_bytes = *std::move(bytes),
                             .pinned = pinned.contains(step.name)});
    }
    for (SkippedStep& skipped : all.skipped) {
      // A fenced step is ignored, as everywhere.
      if (skipped.error.code() == ErrorCode::kConflict) continue;
      found.unusable.push_back({skipped.folder, std::move(skipped.error)});
    }
    return found;
  }

  Result<std::shared_ptr<const Source>> open(const TierStep& step,
                                             const std::string& file) override {
    return std::shared_ptr<const Source>(
        HOLDFAST_TRY(FileSource::open(env_, path_ / step.id / file)));
  }

  Result<void> put(const TierStep& step, const OpenFile& open) override {
    const Run run =
        HOLDFAST_TRY(writing(Run::create_or_open(env_, path_, step.manifest.run)));
    // A random attempt number, because other processes may be copying the same step.
    const Path attempt =
        path_ /
        AttemptName{.step = step.manifest.step, .attempt = env_.random64()}.text();
    Result<void> done = write(step, open, attempt);
    if (done.ok()) done = writing(rename(step, attempt));
    if (!done.ok()) static_cast<void>(env_.remove_all(attempt));
    HOLDFAST_TRY(std::move(done));
    return writing(run.names().sync());
  }

  // Renames the step first, so that nobody takes a half-removed step for a checkpoint.
  Result<void> remove(const TierStep& step) override {
    const std::optional<StepName> name = parse_step_name(step.id);
    if (!name.has_value()) return invalid("{}: \"{}\" is not a step", name_, step.id);
    const Path trash = path_ / trash_name(*name, env_.random64());
    HOLDFAST_TRY(env_.rename_new(path_ / step.id, trash));
    HOLDFAST_TRY(sync_names(env_, path_));
    return env_.remove_all(trash);
  }

  Result<int64_t> sweep(const std::string& run_id, WallTime) override {
    const Result<Run> run = Run::open(env_, path_);
    if (!run.ok() && run.error().code() == ErrorCode::kNotFound) return int64_t{0};
    if (!run.ok()) return run.error();
    if (run->id() != run_id) return int64_t{0};
    const std::optional<OwnerRecord> owner = HOLDFAST_TRY(read_owner(env_, path_));
    if (owner && !owner->released) return int64_t{0};
    int64_t removed = 0;
    for (const std::string& name : HOLDFAST_TRY(env_.list(path_))) {
      if (!parse_attempt_name(name) && !parse_trash_name(name)) continue;
      HOLDFAST_TRY(env_.remove_all(path_ / name));
      ++removed;
    }
    return removed;
  }

 private:
  // Lists the steps of a folder whose holdfast.json is missing or damaged. Each
  // manifest tells which run its step belongs to.
  Result<TierSteps> list_without_run_file(const Error& error) {
    const bool is_lost = is_missing(error);
    if (!is_lost && error.code() != ErrorCode::kCorrupt) return error;
    const Result<std::vector<std::string>> names = env_.list(path_);
    if (!names.ok() && is_missing(names.error())) return TierSteps();
    if (!names.ok()) return names.error();
    TierSteps found;
    for (const std::string& id : *names) {
      if (parse_step_name(id)) add_step(id, found);
    }
    if (found.steps.empty() && found.unusable.empty() && is_lost) return found;
    for (const TierStep& step : found.steps) {
      if (step.manifest.run == found.steps.front().manifest.run) continue;
      return corrupt(
          "{}: has steps of several runs, and {} does not tell which run it is", name_,
          kRunFile);
    }
    const auto age = [](const TierStep& step) { return age_of(step.manifest); };
    std::ranges::stable_sort(found.steps, std::greater(), age);
    found.unusable.push_back({std::string(kRunFile), error.as(ErrorCode::kCorrupt)});
    return found;
  }

  void add_step(const std::string& id, TierSteps& found) {
    Result<Bytes> bytes = env_.read_file(path_ / id / kManifestName);
    Result<Manifest> manifest =
        bytes.ok() ? decode_manifest(*bytes, (path_ / id).native()) : bytes.error();
    if (manifest.ok()) {
      found.steps.push_back({id, *std::move(manifest), *std::move(bytes)});
    } else {
      found.unusable.push_back({id, manifest.error()});
    }
  }

  Result<void> write(const TierStep& step, const OpenFile& open, const Path& attempt) {
    HOLDFAST_TRY(writing(env_.create_folder(attempt)));
    for (const ManifestFile& file : step.manifest.files) {
      const auto source = HOLDFAST_TRY(open(file));
      const auto sink =
          HOLDFAST_TRY(writing(FileSink::create(env_, attempt / file.name)));
      HOLDFAST_TRY(copy_file(file, *source, *sink));
      HOLDFAST_TRY(writing(sink->finish()));
    }
    HOLDFAST_TRY(
        writing(env_.write_file(attempt / kManifestName, step.manifest_bytes)));
    return writing(sync_names(env_, attempt));
  }

  Result<void> rename(const TierStep& step, const Path& attempt) {
    for (StepName name{.step = step.manifest.step};; ++name.generation) {
      const Path folder = path_ / name.text();
      const Result<void> renamed = env_.rename_new(attempt, folder);
      if (renamed.ok() || renamed.error().code() != ErrorCode::kConflict)
        return renamed;
      if (is_whole(step, folder)) return env_.remove_all(attempt);
    }
  }

  // Whether the folder holds the same step with every byte right. If not, the copy is
  // put beside it under another name.
  bool is_whole(const TierStep& step, const Path& folder) {
    const Result<Bytes> there = env_.read_file(folder / kManifestName);
    if (!there.ok() || *there != step.manifest_bytes) return false;
    const Result<StepReport> report = check_step(env_, folder, Depth::kFull);
    return report.ok() && report->whole();
  }

  Env& env_;
  const Path path_;
  const std::string name_;
};

class ObjectStoreTier : public StorageTier {
 public:
  explicit ObjectStoreTier(ObjectStoreRun objects)
      : objects_(std::move(objects)), name_(objects_.name()) {}

  const std::string& name() const override { return name_; }

  Result<TierSteps> list() override {
    TierSteps found;
    for (const ObjectStoreStep& step : HOLDFAST_TRY(objects_.steps())) {
      Result<Bytes> bytes = objects_.read_manifest(step);
      if (!bytes.ok() && is_missing(bytes.error())) continue;
      if (!bytes.ok()) return bytes.error();
      Result<Manifest> manifest = decode(step, *bytes);
      if (manifest.ok()) {
        found.steps.push_back({.id = hex64(step.attempt),
                               .manifest = *std::move(manifest),
                               .manifest_bytes = *std::move(bytes)});
      } else {
        found.unusable.push_back({manifest_name(step), manifest.error(), step.epoch});
      }
    }
    if (found.steps.empty() && found.unusable.empty()) {
      for (std::string& folder : HOLDFAST_TRY(objects_.copied_folders())) {
        Error error = corrupt(
            "{}/{}: is a copy of a step's folder; expected steps that "
            "were copied by a job",
            name_, folder);
        found.unusable.push_back({std::move(folder), std::move(error)});
      }
    }
    return found;
  }

  Result<std::shared_ptr<const Source>> open(const TierStep& step,
                                             const std::string& file) override {
    return std::shared_ptr<const Source>(
        HOLDFAST_TRY(objects_.open(key_of(step.manifest), file)));
  }

  Result<void> put(const TierStep& step, const OpenFile& open) override {
    const TierSteps held = HOLDFAST_TRY(list());
    for (const TierStep& there : held.steps) {
      if (there.manifest.run != step.manifest.run) {
        return conflict(
            "{}: holds the run {}; expected the run {}, or another place "
            "for one of them",
            name_, there.manifest.run, step.manifest.run);
      }
      if (key_of(there.manifest) == key_of(step.manifest)) return {};
    }
    if (held.steps.empty() && !held.unusable.empty()) {
      return corrupt(
          "{}: none of its {} manifests is whole, and they may be another "
          "run's ({}); expected another place, or these manifests moved away",
          name_, held.unusable.size(), held.unusable.front().error.message());
    }
    Result<void> uploaded = upload(step, open);
    if (!uploaded.ok()) {
      static_cast<void>(objects_.discard(step.manifest.attempt));
      return uploaded;
    }
    return objects_.commit(key_of(step.manifest), step.manifest_bytes,
                           step.manifest.files);
  }

  Result<void> remove(const TierStep& step) override {
    return objects_.remove(key_of(step.manifest));
  }

  // Only manifests tell whose the prefix is. Without one, nothing is removed.
  Result<int64_t> sweep(const std::string& run_id, WallTime before) override {
    const TierSteps held = HOLDFAST_TRY(list());
    const bool ours = !held.steps.empty() &&
                      std::ranges::all_of(held.steps, [&](const TierStep& step) {
                        return step.manifest.run == run_id;
                      });
    if (!ours) return int64_t{0};
    return objects_.sweep(before, {});
  }

 private:
  static ObjectStoreStep key_of(const Manifest& manifest) {
    return {.epoch = manifest.epoch,
            .sequence = manifest.sequence,
            .attempt = manifest.attempt};
  }
  Result<Manifest> decode(const ObjectStoreStep& step, ByteView bytes) const {
    const std::string where = name_ + "/" + manifest_name(step);
    Manifest manifest = HOLDFAST_TRY(decode_manifest(bytes, where));
    if (key_of(manifest) == step) return manifest;
    return corrupt("{}: holds the manifest {}; expected its own", where,
                   manifest_name(key_of(manifest)));
  }

  Result<void> upload(const TierStep& step, const OpenFile& open) {
    for (const ManifestFile& file : step.manifest.files) {
      const auto source = HOLDFAST_TRY(open(file));
      const auto upload = HOLDFAST_TRY(
          objects_.create_file(step.manifest.attempt, file.name, file.bytes));
      HOLDFAST_TRY(copy_file(file, *source, *upload));
      HOLDFAST_TRY(upload->finish());
    }
    return {};
  }

  ObjectStoreRun objects_;
  const std::string name_;
};

}  // namespace

bool is_damage(const Error& error) {
  return error.code() == ErrorCode::kCorrupt || is_missing(error);
}

std::unique_ptr<StorageTier> make_folder_tier(Env& env, Path run) {
  return std::make_unique<FolderTier>(env, std::move(run));
}

std::unique_ptr<StorageTier> make_object_tier(ObjectStoreRun objects) {
  return std::make_unique<ObjectStoreTier>(std::move(objects));
}

Result<std::shared_ptr<StorageTier>> open_tier(Env& env, const std::string& place,
                                               const OpenBucket& open_bucket) {
  HOLDFAST_TRY(check_place(place).within("tier"));
  if (!is_object_path(place)) {
    return std::shared_ptr<StorageTier>(make_folder_tier(env, place));
  }
  // Keeps the store alive as long as the tier. The tier is destroyed first.
  struct Owned {
    std::shared_ptr<ObjectStore> store;
    std::unique_ptr<StorageTier> tier;
  };
  const S3Url url = HOLDFAST_TRY(parse_s3_url(place));
  auto owned = std::make_shared<Owned>();
  owned->store = HOLDFAST_TRY(open_bucket(url.bucket));
  owned->tier =
      make_object_tier(HOLDFAST_TRY(ObjectStoreRun::create(*owned->store, url.prefix)));
  return std::shared_ptr<StorageTier>(owned, owned->tier.get());
}

Result<std::shared_ptr<StorageTier>> open_tier(Env& env, const std::string& place,
                                               const Variables& variables) {
  return open_tier(env, place, OpenBucket([&](const std::string& bucket) {
                     return open_s3_from(env, variables, bucket);
                   }));
}

std::vector<std::shared_ptr<StorageTier>> tiers_of(
    const std::vector<TierCopy>& copies) {
  std::vector<std::shared_ptr<StorageTier>> tiers;
  for (const TierCopy& copy : copies) tiers.push_back(copy.tier);
  return tiers;
}

Result<void> copy_step(StorageTier& from, const TierStep& step, StorageTier& to) {
  return to
      .put(step, [&](const ManifestFile& file) { return from.open(step, file.name); })
      .within(fmt::format("{} to {}", from.name(), to.name()));
}

Result<std::vector<TierStep>> StorageTier::steps() {
  return HOLDFAST_TRY(list()).steps;
}

Result<void> retain(StorageTier& tier, const Keep& keep, const RetainOptions& options) {
  const std::vector<TierStep> steps = HOLDFAST_TRY(tier.steps());
  std::vector<KeptStep> kept;
  std::map<StepName, const TierStep*> by_name;
  for (const TierStep& step : steps) {
    // Tiers have their own names for steps. These names only tell apart steps with the
    // same number.
    const StepName name{.step = step.manifest.step, .generation = std::ssize(kept)};
    by_name[name] = &step;
    kept.push_back(
        {.name = name,
         .age = age_of(step.manifest),
         .pinned = step.pinned || options.pinned.contains(step.manifest.step),
         .temporary = step.manifest.temporary,
         .metrics = step.manifest.metrics});
  }
  for (const StepName& name : what_to_remove(kept, keep)) {
    const TierStep& gone = *by_name[name];
    HOLDFAST_TRY(tier.remove(gone));
    if (options.on_removed) options.on_removed(gone, steps.front());
  }
  return {};
}

}  // namespace holdfast
