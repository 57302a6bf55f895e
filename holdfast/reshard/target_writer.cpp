#include "holdfast/reshard/target_writer.h"

#include "holdfast/base/thread_pool.h"
#include "holdfast/store/location.h"
#include "holdfast/store/process.h"

namespace holdfast {
namespace {

// Fails if the path is a link: what it leads to is not for this call to write or remove.
Result<void> check_no_link(Env& env, const Path& path) {
  const Result<FileInfo> info = env.info(path);
  if (!info.ok() || !info->symlink) return {};
  return conflict("{}: is a link; expected a folder or nothing", path.native());
}

}  // namespace

TargetWriter::TargetWriter(Env& env, const ReshardPlan& plan, const Path& to,
                           const ReshardOptions& options, int64_t files,
                           int64_t counted)
    : env_(env),
      plan_(plan),
      to_(to),
      options_(options),
      work_(work_folder(to).run),
      files_(work_folder(to).files),
      counter_(options.reading, counted),
      done_{.files = files, .bytes = plan.target_bytes(), .folder = to},
      reads_(plan) {}

Result<void> TargetWriter::read(HolderId file, TensorId tensor, const Box& box,
                                int64_t first, ByteSpan into) {
  HOLDFAST_TRY(counter_.add(std::ssize(into)));
  return reads_.read(file, tensor, box, first, into);
}

Result<Resharded> TargetWriter::write() {
  HOLDFAST_TRY(check_no_link(env_, work_));
  HOLDFAST_TRY(check_no_link(env_, files_));
  HOLDFAST_TRY(env_.create_folders(work_));
  const Run run = HOLDFAST_TRY(Run::create_or_open(env_, work_));
  const Identity self =
      options_.identity ? *options_.identity : HOLDFAST_TRY(this_process(env_));
  owner_ = HOLDFAST_TRY(run.acquire(self));
  static_cast<void>(run.sweep(*owner_, {}));
  Result<void> written = write_owned(run);
  // The run is owned until the target has its name: a process that took it earlier would
  // empty the folder that is being published.
  if (written.ok()) written = owner_->check();
  if (written.ok()) written = publish();
  if (!written.ok()) {
    // A failure is ignored: the owner is dead when this process ends.
    static_cast<void>(std::move(*owner_).release());
    return written.error();
  }
  const Result<void> synced = env_.sync_names(folder_of(to_));
  leave();
  HOLDFAST_TRY(synced);
  return done_;
}

Result<void> TargetWriter::write_owned(const Run& run) {
  const LeaseKeeper keeper(env_, *owner_);
  HOLDFAST_TRY(begin_or_continue(run));
  HOLDFAST_TRY(write_files());
  HOLDFAST_TRY(join_files());
  done_.seals = HOLDFAST_TRY(check_or_remove());
  return commit(run);
}

Result<void> TargetWriter::begin_or_continue(const Run& run) {
  const std::string own = HOLDFAST_TRY(fingerprint_of(env_, plan_));
  const Result<std::string> left = env_.read_text(work_ / kPlanName);
  if (!left.ok() || *left != own) HOLDFAST_TRY(remove_files());
  HOLDFAST_TRY(env_.replace_file(work_ / kPlanName, bytes_of(own)));
  HOLDFAST_TRY(env_.create_folders(files_));
  return begin(run);
}

Result<void> TargetWriter::write_files() {
  ThreadPool pool({.threads = writers_of(options_, done_.files)});
  for (int64_t file = 0; file < done_.files; ++file) {
    pool.submit([this, file] { write_or_keep(file); });
  }
  pool.wait_idle();
  done_.moved = reads_.moved();
  MutexLock lock(mutex_);
  return error_ ? Result<void>(*error_) : Result<void>();
}

void TargetWriter::write_or_keep(int64_t file) {
  {
    MutexLock lock(mutex_);
    if (error_) return;
  }
  const Result<int64_t> finished = load_finished(file);
  Result<void> there = finished.ok() ? counter_.add(*finished) : write_file(file);
  if (there.ok() && !finished.ok()) {
    there = reads_.check_moved(file, done_.files).within(to_.native());
  }
  MutexLock lock(mutex_);
  if (!there.ok() && !error_) error_ = there.error();
  done_.kept += there.ok() && finished.ok() ? 1 : 0;
}

// If a seal differs, a file is wrong, so the files are removed. All other errors leave the
// files for the next call: a stop or a disk that fails does not mean that they are wrong.
Result<int64_t> TargetWriter::check_or_remove() {
  const Result<int64_t> checked = check_seals();
  if (checked.ok() || checked.error().code() != ErrorCode::kCorrupt) return checked;
  HOLDFAST_TRY(owner_->check());
  HOLDFAST_TRY(remove_files());
  return corrupt("{} (what was written is removed, so the same command begins anew)",
                 checked.error().message());
}

}  // namespace holdfast
