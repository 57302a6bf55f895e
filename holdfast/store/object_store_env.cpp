#include "holdfast/store/object_store_env.h"

#include <algorithm>
#include <future>
#include <set>

#include "holdfast/shard/step_name.h"
#include "holdfast/store/object_store_run.h"
#include "holdfast/store/run_file_internal.h"

namespace holdfast {
namespace {

// How many bytes are fetched ahead for a caller that reads a file in order.
constexpr int64_t kReadAhead = int64_t{8} << 20;

Error read_only(const Path& path) {
  return unsupported(
      "{}: object stores can be read here, but not written; expected a job that has "
      "this place among its tiers",
      path.native());
}

// A file in an object store, for reading. Submitted reads run at the same time: each is
// a request of its own.
class ObjectFile : public File {
 public:
  ObjectFile(const Path& path, std::shared_ptr<const Source> source)
      : File(path, {}), source_(std::move(source)) {}
  ~ObjectFile() override { (void)drain(); }

  Ticket submit_read(int64_t offset, ByteSpan into) override {
    auto done = std::make_shared<std::future<Result<size_t>>>(std::async(
        std::launch::async, [this, offset, into] { return fetch(offset, into); }));
    return put_off([done] { return done->get(); });
  }

  Result<int64_t> size() override { return source_->size(); }
  Result<void> allocate(int64_t) override { return read_only(path()); }
  Result<void> truncate(int64_t) override { return read_only(path()); }
  Result<void> sync() override { return {}; }
  Result<void> sync_data() override { return {}; }

 protected:
  // Serves small reads that follow each other in order from one longer request.
  // Other reads of several threads run at the same time.
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    {
      MutexLock lock(mutex_);
      const bool in_order = std::exchange(next_, offset + std::ssize(into)) == offset;
      if (in_order && !has_ahead(offset) && std::ssize(into) < kReadAhead) {
        HOLDFAST_TRY(fetch_ahead(offset));
      }
      if (has_ahead(offset)) return copy_ahead(offset, into);
    }
    return fetch(offset, into);
  }
  Result<size_t> write_some(int64_t, ByteView) override { return read_only(path()); }
  Result<size_t> append_some(ByteView) override { return read_only(path()); }
  Result<void> close_handle() override { return {}; }

 private:
  bool has_ahead(int64_t offset) const HOLDFAST_REQUIRES(mutex_) {
    return offset >= ahead_at_ && offset < ahead_at_ + std::ssize(ahead_);
  }

  Result<void> fetch_ahead(int64_t offset) HOLDFAST_REQUIRES(mutex_) {
    ahead_.resize(static_cast<size_t>(kReadAhead));
    ahead_at_ = offset;
    const Result<size_t> count = fetch(offset, ahead_);
    ahead_.resize(count.ok() ? *count : 0);
    HOLDFAST_TRY(count);
    return {};
  }

  size_t copy_ahead(int64_t offset, ByteSpan into) HOLDFAST_REQUIRES(mutex_) {
    const ByteView rest =
        ByteView(ahead_).subspan(static_cast<size_t>(offset - ahead_at_));
    const size_t count = std::min(rest.size(), into.size());
    std::copy_n(rest.begin(), count, into.begin());
    next_ = offset + static_cast<int64_t>(count);
    return count;
  }

  Result<size_t> fetch(int64_t offset, ByteSpan into) const {
    const int64_t rest = std::max<int64_t>(source_->size() - offset, 0);
    const ByteSpan part = into.first(
        static_cast<size_t>(std::min(rest, static_cast<int64_t>(into.size()))));
    if (!part.empty()) HOLDFAST_TRY(source_->read(offset, part));
    return part.size();
  }

  const std::shared_ptr<const Source> source_;
  Mutex mutex_;
  // The offset where the last read ended.
  int64_t next_ HOLDFAST_GUARDED_BY(mutex_) = -1;
  int64_t ahead_at_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  Bytes ahead_ HOLDFAST_GUARDED_BY(mutex_);
};

// Whether the path is in an object store. Fails with kInvalid if it has another scheme.
Result<bool> is_in_object_store(const Path& path) {
  HOLDFAST_TRY(check_scheme(path));
  return is_object_path(path);
}

// Whether `name` is a step's folder. The folder of a step whose manifest is damaged has
// the name of the manifest's key instead of the step's number.
bool is_step_folder(std::string_view name) {
  return parse_step_name(name).has_value() || is_manifest_name(name);
}

}  // namespace

struct ObjectStoreEnv::Place {
  std::string bucket;
  std::string prefix;                 // prefix of the run, or of a folder of runs
  std::optional<std::string> step{};  // folder of the step, if the path is in a step
  std::string file{};                 // file of the step, or else of the run

  std::string run() const { return bucket + "/" + prefix; }
  std::string text() const {
    return fmt::format("s3://{}{}{}", bucket, prefix.empty() ? "" : "/", prefix);
  }
};

struct ObjectStoreEnv::Step {
  ObjectStoreStep key;
  Bytes manifest;
  // Names and sizes as the store lists them; nullopt until somebody asks for them.
  std::optional<std::map<std::string, int64_t>> files{};
};

struct ObjectStoreEnv::Run {
  // Shared: files that are open in the run keep the store alive, too.
  std::shared_ptr<ObjectStore> store;
  ObjectStoreRun tier;
  // "unknown" while no manifest can be read.
  std::string id = "unknown";
  // The steps by the names of their folders.
  std::map<std::string, Step> steps{};
  // The names of the runs below this prefix, if the prefix itself has no steps.
  std::vector<std::string> below{};
};

ObjectStoreEnv::ObjectStoreEnv(Env& inner, OpenBucket open_bucket)
    : EnvWrapper(inner), open_bucket_(std::move(open_bucket)) {}

ObjectStoreEnv::~ObjectStoreEnv() = default;

ObjectStoreEnv::Place ObjectStoreEnv::locate(const Path& path) {
  std::vector<std::string> names;
  for (const Path& part : path) {
    if (!part.empty()) names.push_back(part.native());
  }
  Place place;
  if (names.size() > 1) place.bucket = names[1];
  names.erase(names.begin(),
              names.begin() + std::min<std::ptrdiff_t>(2, std::ssize(names)));
  if (names.size() > 1 && is_step_folder(names[names.size() - 2])) {
    place.file = names.back();
    names.pop_back();
  }
  if (!names.empty() && is_step_folder(names.back())) place.step = names.back();
  const bool of_run =
      !names.empty() && (names.back() == kRunFile || names.back() == kOwnerFile ||
                         names.back() == kLatestFile);
  if (of_run) place.file = names.back();
  if (of_run || place.step.has_value()) names.pop_back();
  for (const std::string& name : names) {
    place.prefix += (place.prefix.empty() ? "" : "/") + name;
  }
  return place;
}

namespace {

// Names of the folders directly below the prefix that hold a manifest.
Result<std::vector<std::string>> runs_below(ObjectStore& store,
                                            const std::string& prefix) {
  const std::string start = prefix.empty() ? "" : prefix + "/";
  std::set<std::string> names;
  for (const ObjectInfo& object : HOLDFAST_TRY(store.list(start))) {
    const std::string_view rest = std::string_view(object.key).substr(start.size());
    const size_t slash = rest.find('/');
    if (slash == rest.npos || slash == 0) continue;
    if (is_manifest_name(rest.substr(slash + 1))) names.emplace(rest.substr(0, slash));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace

Result<std::unique_ptr<ObjectStoreEnv::Run>> ObjectStoreEnv::read_run(
    const Place& place, const Run* before) {
  const std::shared_ptr<ObjectStore> store = HOLDFAST_TRY(open_bucket_(place.bucket));
  // Manifests never change, so those that were read before are used again.
  std::map<ObjectStoreStep, Bytes> known;
  if (before != nullptr) {
    for (const auto& [name, step] : before->steps) known[step.key] = step.manifest;
  }
  ObjectStoreRun tier = HOLDFAST_TRY(ObjectStoreRun::create(*store, place.prefix));
  Run run{.store = store, .tier = std::move(tier)};
  std::vector<ObjectStoreStep> keys = HOLDFAST_TRY(run.tier.steps());
  std::reverse(keys.begin(), keys.end());
  std::map<int64_t, int64_t> generations;
  for (const ObjectStoreStep& key : keys) {
    const auto old = known.find(key);
    Result<Bytes> bytes =
        old != known.end() ? old->second : run.tier.read_manifest(key);
    if (!bytes.ok() && bytes.error().code() == ErrorCode::kNotFound) continue;
    if (!bytes.ok()) return bytes.error();
    const Result<Manifest> manifest = decode_manifest(*bytes, place.text());
    std::string folder = manifest_name(key);
    if (manifest.ok()) {
      run.id = manifest->run;
      const int64_t generation = ++generations[manifest->step];
      folder = StepName{.step = manifest->step, .generation = generation}.text();
    }
    run.steps.emplace(folder, Step{.key = key, .manifest = *std::move(bytes)});
  }
  if (run.steps.empty()) run.below = HOLDFAST_TRY(runs_below(*store, place.prefix));
  return std::make_unique<Run>(std::move(run));
}

Result<ObjectStoreEnv::Run*> ObjectStoreEnv::run_at(const Place& place, bool again) {
  const auto none = [&] {
    return not_found("{}: no checkpoint there; expected a manifest below this prefix",
                     place.text());
  };
  if (objects_.contains(place.run())) return none();
  std::unique_ptr<Run>& run = runs_[place.run()];
  if (run == nullptr || again) run = HOLDFAST_TRY(read_run(place, run.get()));
  if (!run->steps.empty() || !run->below.empty()) return run.get();
  runs_.erase(place.run());
  return none();
}

Result<std::shared_ptr<ObjectStore>> ObjectStoreEnv::bucket_at(const Place& place,
                                                               bool again) {
  std::shared_ptr<ObjectStore>& bucket = buckets_[place.bucket];
  if (bucket == nullptr || again) bucket = HOLDFAST_TRY(open_bucket_(place.bucket));
  return bucket;
}

Result<FileInfo> ObjectStoreEnv::object_info(const Place& place) {
  const auto bucket = HOLDFAST_TRY(bucket_at(place, false));
  for (const ObjectInfo& one : HOLDFAST_TRY(bucket->list(place.prefix))) {
    if (one.key != place.prefix) continue;
    objects_.insert(place.run());
    return FileInfo{.size = one.size, .links = 1, .modified = one.modified};
  }
  objects_.erase(place.run());
  return not_found("{}: no such object, and no checkpoint below this prefix", place.text());
}

Result<std::vector<std::string>> ObjectStoreEnv::objects_below(const Place& place) {
  const auto bucket = HOLDFAST_TRY(bucket_at(place, true));
  const std::string start = place.prefix.empty() ? "" : place.prefix + "/";
  std::set<std::string> names;
  for (const ObjectInfo& one : HOLDFAST_TRY(bucket->list(start))) {
    const std::string_view rest = std::string_view(one.key).substr(start.size());
    const size_t slash = rest.find('/');
    if (rest.empty() || slash == 0) continue;
    if (slash == rest.npos) objects_.insert(place.bucket + "/" + one.key);
    names.emplace(rest.substr(0, slash));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Result<ObjectStoreEnv::Step*> ObjectStoreEnv::step_at(const Place& place) {
  Run* const run = HOLDFAST_TRY(run_at(place, false));
  const auto found = run->steps.find(*place.step);
  if (found == run->steps.end()) {
    return not_found("{}: has no {}", place.text(), *place.step);
  }
  Step& step = found->second;
  if (!step.files.has_value()) step.files = HOLDFAST_TRY(run->tier.files(step.key));
  return &step;
}

Result<std::shared_ptr<const Source>> ObjectStoreEnv::source_at(const Place& place) {
  const auto memory = [&](Bytes bytes) {
    return std::make_shared<MemorySource>(place.text() + "/" + place.file,
                                          std::move(bytes));
  };
  struct Owned {
    std::shared_ptr<ObjectStore> store;
    std::unique_ptr<Source> source;
  };
  const auto shared = [](std::shared_ptr<ObjectStore> store, std::unique_ptr<Source> source) {
    const auto owned = std::make_shared<Owned>(Owned{std::move(store), std::move(source)});
    return std::shared_ptr<const Source>(owned, owned->source.get());
  };
  if (place.file.empty()) {
    const auto bucket = HOLDFAST_TRY(bucket_at(place, false));
    return shared(bucket, HOLDFAST_TRY(bucket->open(place.prefix)));
  }
  // Whoever asks for holdfast.json wants to know whether there is a run now.
  const bool read_again = !place.step.has_value() && place.file == kRunFile;
  Run* const run = HOLDFAST_TRY(run_at(place, read_again));
  if (!place.step.has_value()) {
    if (place.file != kRunFile || run->steps.empty()) {
      return not_found("{}: has no {}", place.text(), place.file);
    }
    return std::shared_ptr<const Source>(memory(encode_run_file({.id = run->id})));
  }
  Step* const step = HOLDFAST_TRY(step_at(place));
  if (place.file == kManifestName) {
    return std::shared_ptr<const Source>(memory(step->manifest));
  }
  return shared(run->store, HOLDFAST_TRY(run->tier.open(step->key, place.file)));
}

Result<std::unique_ptr<File>> ObjectStoreEnv::open(const Path& path,
                                                   OpenOptions options) {
  if (!HOLDFAST_TRY(is_in_object_store(path))) return inner_.open(path, options);
  if (options.mode != OpenMode::kRead) return read_only(path);
  if (options.direct)
    return unsupported("{}: direct reads are not possible in an object store",
                       path.native());
  const Place place = locate(path);
  if (place.file.empty() && HOLDFAST_TRY(info(path)).folder) {
    return invalid("{}: is a folder; expected a file", path.native());
  }
  MutexLock lock(mutex_);
  return std::unique_ptr<File>(
      std::make_unique<ObjectFile>(path, HOLDFAST_TRY(source_at(place))));
}

Result<std::unique_ptr<File>> ObjectStoreEnv::create_unnamed(const Path& folder) {
  if (is_object_path(folder)) return read_only(folder);
  return inner_.create_unnamed(folder);
}

Result<void> ObjectStoreEnv::name_file(File& file, const Path& to) {
  if (is_object_path(to)) return read_only(to);
  return inner_.name_file(file, to);
}

Result<FileInfo> ObjectStoreEnv::info(const Path& path) {
  if (!HOLDFAST_TRY(is_in_object_store(path))) return inner_.info(path);
  const Place place = locate(path);
  MutexLock lock(mutex_);
  if (!place.file.empty() && place.step.has_value() && place.file != kManifestName) {
    const Step* const step = HOLDFAST_TRY(step_at(place));
    const auto found = step->files->find(place.file);
    if (found == step->files->end())
      return not_found("{}: there is no such file", path.native());
    return FileInfo{.size = found->second, .links = 1};
  }
  if (!place.file.empty()) {
    return FileInfo{.size = HOLDFAST_TRY(source_at(place))->size(), .links = 1};
  }
  const auto run = run_at(place, false);
  const bool may_be_object = !place.step.has_value() && !place.prefix.empty();
  if (!run.ok() && is_missing(run.error()) && may_be_object) return object_info(place);
  HOLDFAST_TRY(run);
  if (place.step.has_value()) HOLDFAST_TRY(step_at(place));
  return FileInfo{.folder = true};
}

Result<std::vector<std::string>> ObjectStoreEnv::list(const Path& folder) {
  if (!HOLDFAST_TRY(is_in_object_store(folder))) return inner_.list(folder);
  const Place place = locate(folder);
  MutexLock lock(mutex_);
  if (!place.file.empty())
    return invalid("{}: is a file; expected a folder", folder.native());
  std::vector<std::string> names;
  if (place.step.has_value()) {
    const Step* const step = HOLDFAST_TRY(step_at(place));
    for (const auto& [name, size] : *step->files) names.push_back(name);
    names.emplace_back(kManifestName);
  } else {
    const auto found = run_at(place, true);
    if (!found.ok() && is_missing(found.error())) {
      names = HOLDFAST_TRY(objects_below(place));
      if (names.empty()) return found.error();
      return names;
    }
    const Run* const run = HOLDFAST_TRY(found);
    names = run->below;
    for (const auto& [name, step] : run->steps) names.push_back(name);
    if (!run->steps.empty()) names.emplace_back(kRunFile);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<void> ObjectStoreEnv::remove_file(const Path& path) {
  return HOLDFAST_TRY(is_in_object_store(path)) ? read_only(path)
                                                : inner_.remove_file(path);
}

Result<void> ObjectStoreEnv::rename(const Path& from, const Path& to) {
  if (HOLDFAST_TRY(is_in_object_store(from))) return read_only(from);
  return HOLDFAST_TRY(is_in_object_store(to)) ? read_only(to) : inner_.rename(from, to);
}

Result<void> ObjectStoreEnv::rename_new(const Path& from, const Path& to) {
  if (HOLDFAST_TRY(is_in_object_store(from))) return read_only(from);
  return HOLDFAST_TRY(is_in_object_store(to)) ? read_only(to)
                                              : inner_.rename_new(from, to);
}

Result<void> ObjectStoreEnv::link(const Path& from, const Path& to) {
  if (HOLDFAST_TRY(is_in_object_store(from))) return read_only(from);
  return HOLDFAST_TRY(is_in_object_store(to)) ? read_only(to) : inner_.link(from, to);
}

Result<void> ObjectStoreEnv::create_folder(const Path& path) {
  return HOLDFAST_TRY(is_in_object_store(path)) ? read_only(path)
                                                : inner_.create_folder(path);
}

Result<void> ObjectStoreEnv::remove_folder(const Path& path) {
  return HOLDFAST_TRY(is_in_object_store(path)) ? read_only(path)
                                                : inner_.remove_folder(path);
}

Result<void> ObjectStoreEnv::sync_folder(const Path& folder) {
  return HOLDFAST_TRY(is_in_object_store(folder)) ? read_only(folder)
                                                  : inner_.sync_folder(folder);
}

Result<int64_t> ObjectStoreEnv::free_space(const Path& folder) {
  return HOLDFAST_TRY(is_in_object_store(folder)) ? read_only(folder)
                                                  : inner_.free_space(folder);
}

}  // namespace holdfast
