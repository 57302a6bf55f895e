#include "holdfast/store/object_store_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "holdfast/base/number_text.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {
namespace {

constexpr std::string_view kManifestPrefix = "manifest-";
constexpr std::string_view kManifestSuffix = ".json";
// Number of decimal digits of the greatest int64_t.
constexpr size_t kDecimals = 19;
constexpr size_t kHexDigits = 16;

std::optional<ObjectStoreStep> step_of_name(std::string_view name) {
  const size_t head = kManifestPrefix.size();
  if (name.size() != head + 2 * (kDecimals + 1) + kHexDigits + kManifestSuffix.size()) {
    return std::nullopt;
  }
  const auto epoch = number_in<int64_t>(name.substr(head, kDecimals), 10);
  const auto sequence =
      number_in<int64_t>(name.substr(head + kDecimals + 1, kDecimals), 10);
  const auto attempt =
      number_in<uint64_t>(name.substr(head + 2 * (kDecimals + 1), kHexDigits), 16);
  if (!epoch || !sequence || !attempt) return std::nullopt;
  const ObjectStoreStep step{*epoch, *sequence, *attempt};
  // Formats the step again and compares, so that no second spelling names the same
  // checkpoint.
  if (manifest_name(step) != name) return std::nullopt;
  return step;
}

// Parses the attempt in a key below data/, which has the form "<16 digits>/<file>".
std::optional<uint64_t> attempt_of(std::string_view below_data) {
  if (below_data.size() <= kHexDigits || below_data[kHexDigits] != '/') {
    return std::nullopt;
  }
  return number_in<uint64_t>(below_data.substr(0, kHexDigits), 16);
}

// What an attempt has left in the store: finished objects and uploads under way.
struct Leftover {
  WallTime newest;
  std::vector<std::string> keys;
  std::vector<PendingUpload> uploads;
};
using Leftovers = std::map<uint64_t, Leftover>;

// Returns the entry of the attempt that `key` belongs to, or null if it belongs to none.
// The object with this key was written at `when`, so the entry becomes at least as new.
// `prefix` is the length of what all keys of data begin with.
Leftover* find_leftover(Leftovers& all, std::string_view key, size_t prefix,
                        WallTime when) {
  const auto attempt = attempt_of(key.substr(prefix));
  if (!attempt) return nullptr;
  Leftover& found = all[*attempt];
  found.newest = std::max(found.newest, when);
  return &found;
}

// Groups everything below the prefix `data` by attempt. Stores that cannot list uploads
// under way are searched for finished objects only.
Result<Leftovers> find_leftovers(ObjectStore& store, const std::string& data) {
  Leftovers all;
  for (const ObjectInfo& object : HOLDFAST_TRY(store.list(data))) {
    Leftover* found = find_leftover(all, object.key, data.size(), object.modified);
    if (found != nullptr) found->keys.push_back(object.key);
  }
  const auto uploads = store.list_uploads(data);
  if (!uploads.ok()) {
    if (uploads.error().code() == ErrorCode::kUnsupported) return all;
    return uploads.error();
  }
  for (const PendingUpload& upload : *uploads) {
    Leftover* found = find_leftover(all, upload.key, data.size(), upload.started);
    if (found != nullptr) found->uploads.push_back(upload);
  }
  return all;
}

}  // namespace

std::string manifest_name(const ObjectStoreStep& step) {
  return fmt::format("{}{:019}-{:019}-{:016x}{}", kManifestPrefix, step.epoch,
                     step.sequence, step.attempt, kManifestSuffix);
}

bool is_manifest_name(std::string_view name) { return step_of_name(name).has_value(); }

Result<ObjectStoreRun> ObjectStoreRun::create(ObjectStore& store, std::string prefix) {
  if (prefix.ends_with('/')) prefix.pop_back();
  if (!prefix.empty()) {
    HOLDFAST_TRY(check_object_key(store.name(), prefix));
    prefix += '/';
  }
  return ObjectStoreRun(store, std::move(prefix));
}

std::string ObjectStoreRun::name() const {
  if (prefix_.empty()) return store_->name();
  return store_->name() + "/" + prefix_.substr(0, prefix_.size() - 1);
}

std::string ObjectStoreRun::attempt_prefix(uint64_t attempt) const {
  return fmt::format("{}{:016x}/", data_prefix(), attempt);
}

std::string ObjectStoreRun::manifest_key(const ObjectStoreStep& step) const {
  return prefix_ + manifest_name(step);
}

Result<std::string> ObjectStoreRun::file_key(uint64_t attempt,
                                             const std::string& file) const {
  if (file.empty() || file.find('/') != file.npos) {
    return invalid("{}: file \"{}\"; expected a name without folders", name(), file);
  }
  return attempt_prefix(attempt) + file;
}

Result<std::unique_ptr<Upload>> ObjectStoreRun::create_file(uint64_t attempt,
                                                            const std::string& file,
                                                            int64_t size) {
  return store_->begin_upload(HOLDFAST_TRY(file_key(attempt, file)), size);
}

Result<void> ObjectStoreRun::commit(const ObjectStoreStep& step, ByteView manifest,
                                    std::span<const ManifestFile> files) {
  if (step.epoch < 0 || step.sequence < 0) {
    return invalid("{}: commit of epoch {}, sequence {}; expected 0 or more", name(),
                   step.epoch, step.sequence);
  }
  const std::map<std::string, int64_t> there = HOLDFAST_TRY(this->files(step));
  for (const ManifestFile& file : files) {
    const auto found = there.find(file.name);
    if (found == there.end() || found->second != file.bytes) {
      return conflict("{}: attempt {:016x}: {} has {} bytes; expected {}", name(),
                      step.attempt, file.name, found == there.end() ? 0 : found->second,
                      file.bytes);
    }
  }
  return store_->put(manifest_key(step), manifest);
}

Result<std::vector<ObjectStoreStep>> ObjectStoreRun::steps() {
  std::vector<ObjectStoreStep> steps;
  for (const ObjectInfo& object :
       HOLDFAST_TRY(store_->list(prefix_ + std::string(kManifestPrefix)))) {
    const auto step = step_of_name(object.key.substr(prefix_.size()));
    if (step) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

Result<std::vector<std::string>> ObjectStoreRun::copied_folders() {
  std::set<std::string> names;
  for (const ObjectInfo& object : HOLDFAST_TRY(store_->list(prefix_ + "step-"))) {
    const std::string_view rest = std::string_view(object.key).substr(prefix_.size());
    const std::string_view folder = rest.substr(0, rest.find('/'));
    if (parse_step_name(folder)) names.emplace(folder);
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<Bytes> ObjectStoreRun::read_manifest(const ObjectStoreStep& step) {
  return store_->get(manifest_key(step), kMaxManifestBytes);
}

Result<std::unique_ptr<Source>> ObjectStoreRun::open(const ObjectStoreStep& step,
                                                     const std::string& file) {
  return store_->open(HOLDFAST_TRY(file_key(step.attempt, file)));
}

Result<std::map<std::string, int64_t>> ObjectStoreRun::files(
    const ObjectStoreStep& step) {
  const std::string start = attempt_prefix(step.attempt);
  std::map<std::string, int64_t> files;
  for (const ObjectInfo& object : HOLDFAST_TRY(store_->list(start))) {
    files[object.key.substr(start.size())] = object.size;
  }
  return files;
}

Result<int64_t> ObjectStoreRun::remove_keys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) HOLDFAST_TRY(store_->remove(key));
  return static_cast<int64_t>(keys.size());
}

Result<void> ObjectStoreRun::remove(const ObjectStoreStep& step) {
  HOLDFAST_TRY(store_->remove(manifest_key(step)));
  return discard(step.attempt);
}

Result<void> ObjectStoreRun::discard(uint64_t attempt) {
  for (const ObjectStoreStep& step : HOLDFAST_TRY(steps())) {
    if (step.attempt == attempt) {
      return invalid("{}: attempt {:016x} is committed; expected one that is not",
                     name(), attempt);
    }
  }
  for (const ObjectInfo& object : HOLDFAST_TRY(store_->list(attempt_prefix(attempt)))) {
    HOLDFAST_TRY(store_->remove(object.key));
  }
  return {};
}

Result<int64_t> ObjectStoreRun::sweep(WallTime before, const std::set<uint64_t>& live) {
  // Lists the data before the manifests. An attempt that is committed in between is
  // then seen as committed and is kept.
  const Leftovers all = HOLDFAST_TRY(find_leftovers(*store_, data_prefix()));
  std::set<uint64_t> kept = live;
  for (const ObjectStoreStep& step : HOLDFAST_TRY(steps())) kept.insert(step.attempt);
  int64_t removed = 0;
  for (const auto& [attempt, leftover] : all) {
    if (kept.contains(attempt) || leftover.newest >= before) continue;
    removed += HOLDFAST_TRY(remove_keys(leftover.keys));
    for (const PendingUpload& upload : leftover.uploads) {
      HOLDFAST_TRY(store_->abort_upload(upload));
      ++removed;
    }
  }
  return removed;
}

}  // namespace holdfast
