// Writes a re-cut checkpoint as a folder of another program.
//
//   1. The hidden folder ".NAME.reshard" is a run, only for its owner: two processes never
//      write the same target.
//   2. Each file is written and synced as "files/FILE.part". What later steps need to know
//      about it is written as "notes/N". Then the file gets its name: so a file with its
//      name is finished.
//   3. When all files are finished, what depends on all of them is written, the folder is
//      opened and its seals are compared with those of the source.
//   4. "files" is renamed to the target, and the hidden folder is removed.
#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/base/thread_pool.h"
#include "holdfast/elastic/reshard_internal.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/dcp.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/store/location.h"
#include "holdfast/store/process.h"
#include "holdfast/store/run.h"

namespace holdfast {
namespace {

// What a kind of folder is made of.
class FolderKind {
 public:
  virtual ~FolderKind() = default;
  virtual int64_t files() const = 0;
  virtual std::string file_name(int64_t file) const = 0;
  // Returns a text that finish() gets.
  virtual Result<std::string> write(int64_t file, Sink& sink,
                                    const OnRead& on_read) const = 0;
  virtual Result<void> finish(Env& env, const Path& folder,
                              const std::vector<std::string>& notes) const = 0;
  virtual Result<Contents> open(Env& env, const Path& folder) const = 0;
};

class DcpKind : public FolderKind {
 public:
  explicit DcpKind(DcpFolder folder, int64_t files)
      : folder_(std::move(folder)), files_(files) {}

  static Result<std::unique_ptr<FolderKind>> create(const ReshardPlan& plan) {
    const Layout& layout = plan.files->layout();
    std::vector<std::vector<DcpBox>> files(layout.holders().size());
    for (TensorId t = 0; t < layout.tensor_count(); ++t) {
      for (const Slice& slice : layout.slices(t)) {
        files[layout.holder(slice.first)].push_back(
            {source_tensor(plan, t), slice.box});
      }
    }
    const int64_t count = std::max<int64_t>(std::ssize(files), 1);
    DcpFolder folder =
        HOLDFAST_TRY(DcpFolder::create(plan.contents, std::move(files)));
    return std::unique_ptr<FolderKind>(
        std::make_unique<DcpKind>(std::move(folder), count));
  }

  int64_t files() const override { return files_; }
  std::string file_name(int64_t file) const override {
    return DcpFolder::file_name(static_cast<size_t>(file));
  }
  Result<std::string> write(int64_t file, Sink& sink,
                            const OnRead& on_read) const override {
    return folder_.write_file(static_cast<size_t>(file), sink, on_read);
  }
  Result<void> finish(Env& env, const Path& folder,
                      const std::vector<std::string>& notes) const override {
    return env.replace_file(folder / kDcpMetadataFile,
                            HOLDFAST_TRY(folder_.metadata(notes)));
  }
  Result<Contents> open(Env& env, const Path& folder) const override {
    return open_dcp(env, folder);
  }

 private:
  const DcpFolder folder_;
  const int64_t files_;
};

class MegatronKind : public FolderKind {
 public:
  explicit MegatronKind(const ReshardPlan& plan)
      : target_(*plan.megatron_target), rules_(plan.rule_set) {}

  int64_t files() const override { return target_.files(); }
  std::string file_name(int64_t file) const override {
    return target_.file_name(file);
  }
  Result<std::string> write(int64_t file, Sink& sink,
                            const OnRead& on_read) const override {
    const Contents contents = HOLDFAST_TRY(target_.contents_of(file, on_read));
    HOLDFAST_TRY(write_torch_with_classes(sink, contents));
    return std::string();
  }
  Result<void> finish(Env& env, const Path& folder,
                      const std::vector<std::string>&) const override {
    return env.replace_file(folder / "latest_checkpointed_iteration.txt",
                            bytes_of(target_.tracker_text()));
  }
  Result<Contents> open(Env& env, const Path& folder) const override {
    const auto found = HOLDFAST_TRY(find_megatron(env, folder));
    if (!found) return corrupt("{}: has no ranks of Megatron", folder.native());
    OpenedMegatron opened = HOLDFAST_TRY(open_megatron(env, *found, rules_));
    return std::move(opened.contents);
  }

 private:
  const MegatronTarget& target_;
  const RuleSet& rules_;
};

Result<std::unique_ptr<FolderKind>> kind_of(const ReshardPlan& plan) {
  if (plan.format == kDcpFormat) return DcpKind::create(plan);
  return std::unique_ptr<FolderKind>(std::make_unique<MegatronKind>(plan));
}

// Carries out one call of write_folder().
class FolderWriter {
 public:
  FolderWriter(Env& env, const ReshardPlan& plan, const Path& to,
               const ReshardOptions& options, const FolderKind& kind)
      : env_(env),
        plan_(plan),
        to_(to),
        options_(options),
        kind_(kind),
        work_(work_folder(to).run),
        files_(work_folder(to).files),
        counter_(options.reading,
                 plan.target_bytes() + plan.files->bytes() + bytes_to_seal(plan)) {}

  Result<Resharded> write() {
    HOLDFAST_TRY(env_.create_folders(work_));
    const Run run = HOLDFAST_TRY(Run::create_or_open(env_, work_));
    const Identity self =
        options_.identity ? *options_.identity : HOLDFAST_TRY(this_process(env_));
    owner_ = HOLDFAST_TRY(run.acquire(self));
    Result<Resharded> done = write_owned();
    if (!done.ok()) {
      // A failure is ignored: the owner is dead when this process ends.
      static_cast<void>(std::move(*owner_).release());
      return done;
    }
    HOLDFAST_TRY(owner_->check());
    HOLDFAST_TRY(env_.rename_new(files_, to_));
    HOLDFAST_TRY(env_.sync_names(folder_of(to_)));
    static_cast<void>(env_.remove_all(work_));
    return done;
  }

 private:
  Result<Resharded> write_owned() {
    const LeaseKeeper keeper(env_, *owner_);
    HOLDFAST_TRY(begin_or_continue());
    HOLDFAST_TRY(write_files());
    HOLDFAST_TRY(kind_.finish(env_, files_, notes_));
    HOLDFAST_TRY(sync_folders());
    done_.files = kind_.files();
    done_.bytes = plan_.target_bytes();
    done_.folder = to_;
    done_.seals = HOLDFAST_TRY(check_or_remove());
    return done_;
  }

  Result<void> begin_or_continue() {
    const std::string own = HOLDFAST_TRY(fingerprint_of(env_, plan_));
    const Result<std::string> left = env_.read_text(work_ / kPlanName);
    if (!left.ok() || *left != own) HOLDFAST_TRY(remove_files());
    HOLDFAST_TRY(env_.replace_file(work_ / kPlanName, bytes_of(own)));
    HOLDFAST_TRY(env_.create_folders(work_ / "notes"));
    HOLDFAST_TRY(env_.create_folders(files_));
    for (int64_t file = 0; file < kind_.files(); ++file) {
      HOLDFAST_TRY(env_.create_folders(folder_of(files_ / kind_.file_name(file))));
    }
    return {};
  }

  Result<void> remove_files() {
    HOLDFAST_TRY(env_.remove_all(files_));
    return env_.remove_all(work_ / "notes");
  }

  Result<void> write_files() {
    notes_.resize(static_cast<size_t>(kind_.files()));
    ThreadPool pool({.threads = writers_of(options_, kind_.files())});
    for (int64_t file = 0; file < kind_.files(); ++file) {
      pool.submit([this, file] { write_or_keep(file); });
    }
    pool.wait_idle();
    MutexLock lock(mutex_);
    return error_ ? Result<void>(*error_) : Result<void>();
  }

  void write_or_keep(int64_t file) {
    {
      MutexLock lock(mutex_);
      if (error_) return;
    }
    Result<std::string> note = finished(file);
    const bool kept = note.ok();
    if (!kept) note = write_file(file);
    MutexLock lock(mutex_);
    if (!note.ok()) {
      if (!error_) error_ = note.error();
      return;
    }
    done_.kept += kept ? 1 : 0;
    notes_[static_cast<size_t>(file)] = *std::move(note);
  }

  Path note_path(int64_t file) const { return work_ / "notes" / std::to_string(file); }

  // The note of a file that an earlier call has finished.
  Result<std::string> finished(int64_t file) const {
    HOLDFAST_TRY(env_.info(files_ / kind_.file_name(file)));
    return env_.read_text(note_path(file), int64_t{1} << 30);
  }

  Result<std::string> write_file(int64_t file) {
    const Path path = files_ / kind_.file_name(file);
    const Path part = path.native() + ".part";
    HOLDFAST_TRY(env_.remove_all(part));
    std::string note = HOLDFAST_TRY(write_part(file, part));
    HOLDFAST_TRY(owner_->check());
    HOLDFAST_TRY(env_.replace_file(note_path(file), bytes_of(note)));
    HOLDFAST_TRY(env_.rename(part, path));
    HOLDFAST_TRY(env_.sync_names(folder_of(path)));
    return note;
  }

  Result<std::string> write_part(int64_t file, const Path& part) {
    const auto sink = HOLDFAST_TRY(FileSink::create(env_, part));
    const OnRead count = [this](int64_t bytes) { return counter_.add(bytes); };
    Result<std::string> note = kind_.write(file, *sink, count);
    if (!note.ok()) {
      static_cast<void>(env_.remove_all(part));
      return note;
    }
    HOLDFAST_TRY(sink->finish());
    return note;
  }

  Result<void> sync_folders() const {
    for (int64_t file = 0; file < kind_.files(); ++file) {
      for (Path folder = folder_of(files_ / kind_.file_name(file)); folder != files_;
           folder = folder_of(folder)) {
        HOLDFAST_TRY(env_.sync_names(folder));
      }
    }
    return env_.sync_names(files_);
  }

  // Files with other seals than the source must not be kept by the next call. All others
  // are kept: a stop or a disk that fails says nothing about them.
  Result<int64_t> check_or_remove() {
    const Result<int64_t> checked = check_seals();
    if (checked.ok() || checked.error().code() != ErrorCode::kCorrupt) return checked;
    HOLDFAST_TRY(owner_->check());
    HOLDFAST_TRY(remove_files());
    return corrupt("{} (what was written is removed, so the same command begins anew)",
                   checked.error().message());
  }

  Result<int64_t> check_seals() {
    const Contents written = HOLDFAST_TRY(kind_.open(env_, files_));
    const Collection& source = plan_.contents->collection;
    for (TensorId t = 0; t < source.tensors().size(); ++t) {
      const Tensor& tensor = source.tensor(t);
      const auto id = written.collection.find(tensor.name);
      if (!id) {
        return corrupt("{}: is not in the target; expected all tensors",
                       shown(tensor.name));
      }
      HOLDFAST_TRY(compare(written, *id, t).within(shown(tensor.name)));
    }
    HOLDFAST_TRY(check_copies(written));
    return std::ssize(source.tensors());
  }

  // The seals are those of the first copy of each box.
  Result<void> check_copies(const Contents& written) const {
    Counter counter({.stop = options_.reading.stop}, 0);
    const Result<void> equal = check_replicas(written, counter);
    if (equal.ok() || equal.error().code() != ErrorCode::kInvalid) return equal;
    return corrupt("{}", equal.error().message());
  }

  // Pad rows, which are the last ones, may be fewer or more than in the source.
  Result<void> compare(const Contents& written, TensorId id, TensorId of_source) {
    const Tensor& source = plan_.contents->collection.tensor(of_source);
    const Tensor& target = written.collection.tensor(id);
    if (source.dtype != target.dtype || source.shape.rank() != target.shape.rank()) {
      return corrupt("is {} {}; expected {} {}", name_of(target.dtype),
                     to_string(target.shape), name_of(source.dtype),
                     to_string(source.shape));
    }
    const int64_t bytes = std::min(source.bytes(), target.bytes());
    const auto recorded = recorded_seal(plan_, of_source);
    const Seal expected =
        recorded && bytes == source.bytes()
            ? *recorded
            : HOLDFAST_TRY(seal_of_tensor(*plan_.contents, of_source, bytes, counter_));
    const Seal seal = HOLDFAST_TRY(seal_of_tensor(written, id, bytes, counter_));
    if (seal == expected) return {};
    return corrupt("has the seal {} in the target; expected {} as in the source",
                   print_seal(seal, target.dtype, target.shape),
                   print_seal(expected, source.dtype, source.shape));
  }

  Env& env_;
  const ReshardPlan& plan_;
  const Path to_;
  const ReshardOptions& options_;
  const FolderKind& kind_;
  const Path work_;
  const Path files_;
  Counter counter_;
  std::optional<Owner> owner_;  // set first of all

  Mutex mutex_;
  std::vector<std::string> notes_;  // each writer sets its own
  Resharded done_;
  std::optional<Error> error_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace

Result<Resharded> write_folder(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options) {
  const auto kind = HOLDFAST_TRY(kind_of(plan));
  return FolderWriter(env, plan, to, options, *kind).write();
}

}  // namespace holdfast
