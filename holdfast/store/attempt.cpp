#include "holdfast/store/attempt.h"

#include <utility>

#include "holdfast/base/checked.h"
#include "holdfast/env/file.h"
#include "holdfast/store/events.h"

namespace holdfast {

Attempt::Attempt(const Run& run, AttemptName name, State state)
    : run_(run), name_(name), folder_(run.path() / name.text()), state_(state) {}

Attempt::Attempt(Attempt&& other) noexcept
    : run_(std::move(other.run_)),
      name_(other.name_),
      folder_(std::move(other.folder_)),
      state_(std::exchange(other.state_, State::kOver)),
      owner_(std::move(other.owner_)),
      events_(other.events_) {}

Attempt& Attempt::operator=(Attempt&& other) noexcept {
  if (this == &other) return *this;
  (void)abandon("replaced");
  run_ = std::move(other.run_);
  name_ = other.name_;
  folder_ = std::move(other.folder_);
  state_ = std::exchange(other.state_, State::kOver);
  owner_ = std::move(other.owner_);
  events_ = other.events_;
  return *this;
}

Attempt::~Attempt() { (void)abandon("dropped"); }

Result<Attempt> Attempt::begin(const Run& run, const Owner& owner, int64_t step,
                               uint64_t attempt, EventSink* events) {
  if (step < 0)
    return invalid("{}: step {}; expected 0 or more", run.path().native(), step);
  HOLDFAST_TRY(owner.check());
  const AttemptName name{.step = step, .attempt = attempt};
  HOLDFAST_TRY(run.env().create_folder(run.path() / name.text()));
  Attempt made(run, name, State::kBegun);
  made.owner_ = owner;
  made.events_ = events;
  HOLDFAST_TRY(run.names().sync());
  if (events != nullptr) {
    emit(*events, run.env(),
         AttemptStarted{
             .step = step, .attempt = hex64(attempt), .epoch = owner.epoch()});
  }
  return made;
}

Result<Attempt> Attempt::join(const Run& run, int64_t step, uint64_t attempt) {
  Attempt made(run, {.step = step, .attempt = attempt}, State::kJoined);
  const FileInfo info = HOLDFAST_TRY(run.env().info(made.folder_));
  if (info.folder) return made;
  return invalid("{}: is a file; expected a folder", made.folder_.native());
}

Result<ManifestFile> Attempt::put_file(const std::string& name, ByteView bytes) {
  HOLDFAST_TRY(check_file_name(name).within(folder_.native()));
  if (static_cast<int64_t>(bytes.size()) > kReadLimit) {
    return invalid("{}/{}: {} bytes, limit {}", folder_.native(), name, bytes.size(),
                   kReadLimit);
  }
  const auto file =
      HOLDFAST_TRY(run_.env().open(folder_ / name, {.mode = OpenMode::kCreate}));
  HOLDFAST_TRY(file->write_at(0, bytes));
  HOLDFAST_TRY(file->sync_data());
  HOLDFAST_TRY(file->close());
  return ManifestFile{.name = name,
                      .bytes = static_cast<int64_t>(bytes.size()),
                      .digest = xxh3_digest(bytes)};
}

Result<void> Attempt::sync() { return sync_names(run_.env(), folder_); }

Result<void> Attempt::check_files(const Manifest& manifest) const {
  for (const ManifestFile& file : manifest.files) {
    HOLDFAST_TRY(check_file_name(file.name).within(folder_.native()));
    const Path path = folder_ / file.name;
    const FileInfo info = HOLDFAST_TRY(run_.env().info(path));
    if (!info.folder && info.size == file.bytes) continue;
    return corrupt("{}: {} bytes; expected {}, as its rank reported in its vote",
                   path.native(), info.size, file.bytes);
  }
  return {};
}

// Returns the manifest with the fields that the run and this attempt determine. Values
// that the caller has set for these fields are overwritten.
Result<Manifest> Attempt::complete(Manifest manifest) const {
  manifest.step = name_.step;
  manifest.attempt = name_.attempt;
  manifest.run = run_.id();
  manifest.epoch = owner_->epoch();
  manifest.sequence = HOLDFAST_TRY(run_.next_sequence());
  manifest.created = run_.env().wall_now();
  return manifest;
}

Result<void> Attempt::write_manifest(const Manifest& manifest) {
  const Bytes bytes = encode_manifest(manifest);
  // Decodes the bytes once more, so that no manifest is committed that readers would
  // refuse.
  HOLDFAST_TRY(decode_manifest(bytes, (folder_ / kManifestName).native()));
  HOLDFAST_TRY(put_file(std::string(kManifestName), bytes));
  return sync();
}

bool Attempt::is_own(const StepName& name) const {
  const Result<Manifest> there = read_manifest(run_.env(), run_.path() / name.text());
  return there.ok() && there->attempt == name_.attempt && there->run == run_.id();
}

// Called after rename_new() reported a failure. The rename may have happened all the
// same (for example, its answer was lost on a network file system), so this looks into
// the run directory. Returns `tried` if this attempt is committed under that name,
// `error` if the attempt's folder is still there, and kUnavailable if neither folder
// shows what happened.
Result<StepName> Attempt::resolve_failed_rename(const StepName& tried,
                                                const Error& error) {
  if (is_own(tried)) return tried;
  const Result<FileInfo> pending = run_.env().info(folder_);
  if (pending.ok()) return error;
  state_ = State::kUnknown;
  return unavailable("{}: cannot tell whether this attempt is committed: {}",
                     folder_.native(), error.message());
}

Result<StepName> Attempt::rename_to_step() {
  StepName name{.step = name_.step};
  while (true) {
    const Result<void> renamed =
        run_.env().rename_new(folder_, run_.path() / name.text());
    if (renamed.ok()) return name;
    Result<StepName> seen = resolve_failed_rename(name, renamed.error());
    if (seen.ok() || seen.error().code() != ErrorCode::kConflict) return seen;
    ++name.generation;
  }
}

void Attempt::write_latest(const StepName& name) {
  const std::string text = name.text();
  const Result<void> written = run_.names().replace(kLatestFile, bytes_of(text + "\n"));
  if (written.ok() || events_ == nullptr) return;
  emit(*events_, run_.env(),
       LatestNotWritten{.folder = text, .reason = written.error().message()});
}

Result<Path> Attempt::finish(const StepName& name, const Manifest& manifest) {
  state_ = State::kCommitted;
  const Result<void> synced = run_.names().sync();
  if (!synced.ok()) {
    return io_error("{}: committed as {}, but a power failure may lose it: {}",
                    run_.path().native(), name.text(), synced.error().message());
  }
  if (events_ != nullptr) {
    int64_t bytes = 0;
    for (const ManifestFile& file : manifest.files) bytes += file.bytes;
    emit(*events_, run_.env(),
         StepCommitted{.step = name_.step,
                       .folder = name.text(),
                       .attempt = hex64(name_.attempt),
                       .epoch = manifest.epoch,
                       .sequence = manifest.sequence,
                       .bytes = bytes});
  }
  write_latest(name);
  return run_.path() / name.text();
}

Result<Path> Attempt::commit(Manifest manifest) {
  HOLDFAST_CHECK(state_ == State::kBegun,
                 "commit() of an attempt that begin() did not make, or that is over");
  manifest = HOLDFAST_TRY(complete(std::move(manifest)));
  HOLDFAST_TRY(check_files(manifest));
  HOLDFAST_TRY(write_manifest(manifest));
  HOLDFAST_TRY(owner_->check());
  const StepName name = HOLDFAST_TRY(rename_to_step());
  return finish(name, manifest);
}

Result<void> Attempt::abandon(std::string_view reason) {
  const State before = std::exchange(
      state_, state_ == State::kCommitted ? State::kCommitted : State::kOver);
  if (before != State::kBegun) return {};
  if (events_ != nullptr) {
    emit(*events_, run_.env(),
         AttemptAbandoned{.step = name_.step,
                          .attempt = hex64(name_.attempt),
                          .reason = std::string(reason)});
  }
  return run_.env().remove_all(folder_);
}

Result<void> check_space(const Run& run, int64_t bytes, int64_t reserve) {
  const int64_t free = HOLDFAST_TRY(run.env().free_space(run.path()));
  const std::optional<int64_t> needed = checked_add(bytes, reserve);
  if (needed && free >= *needed) return {};
  return no_space("{}: {} bytes free; expected {} and {} to spare", run.path().native(),
                  free, bytes, reserve);
}

}  // namespace holdfast
