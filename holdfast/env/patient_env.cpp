#include "holdfast/env/patient_env.h"

#include <array>

namespace holdfast {
namespace {

using namespace std::chrono_literals;

// The pauses between one try and the next.
constexpr std::array<Duration, 2> kPauses{200ms, 1s};
// A call that failed after this time is not repeated: it has waited long enough itself.
constexpr Duration kLongEnough = 10s;

bool may_recover(const Error& error) {
  return error.code() == ErrorCode::kIo || error.code() == ErrorCode::kUnavailable ||
         error.code() == ErrorCode::kTimeout;
}

// The outcome of a call that started at `start`. If the call failed, it is repeated,
// and the result is the outcome of the last try.
template <typename Outcome, typename Call>
Outcome patiently(Env& env, Outcome outcome, Instant start, const Call& call) {
  for (const Duration pause : kPauses) {
    if (outcome.ok() || !may_recover(outcome.error())) return outcome;
    if (env.now() - start > kLongEnough) break;
    env.sleep_for(pause);
    outcome = call();
  }
  if (outcome.ok() || outcome.error().code() != ErrorCode::kIo) return outcome;
  return outcome.error().as(ErrorCode::kCorrupt);
}

template <typename Call>
auto patiently(Env& env, const Call& call) -> decltype(call()) {
  const Instant start = env.now();
  return patiently(env, call(), start, call);
}

// A file opened to read. A failed read is tried again.
class PatientFile : public File {
 public:
  PatientFile(Env& env, OpenOptions options, std::shared_ptr<File> inner)
      : File(inner->path(), options),
        env_(env),
        options_(options),
        inner_(std::move(inner)) {}
  ~PatientFile() override { static_cast<void>(drain()); }

  // Starts the read at once, as the inner file does. If the read has failed, wait()
  // tries it again.
  Ticket submit_read(int64_t offset, ByteSpan into) override {
    const Instant start = env_.now();
    const std::shared_ptr<File> file = current();
    const Ticket ticket = file->submit_read(offset, into);
    return put_off([this, start, file, ticket, offset, into] {
      return patiently(env_, file->wait(ticket), start,
                       [&] { return read_anew(offset, into); });
    });
  }

  Result<int64_t> size() override {
    return patiently(env_, [&] { return current()->size(); });
  }
  Result<WallTime> modified() override { return current()->modified(); }
  Result<void> allocate(int64_t) override { return refuse(); }
  Result<void> truncate(int64_t) override { return refuse(); }
  Result<void> sync() override { return current()->sync(); }
  Result<void> sync_data() override { return current()->sync_data(); }

 protected:
  Result<size_t> read_some(int64_t offset, ByteSpan into) override {
    const Instant start = env_.now();
    return patiently(env_, current()->read_at(offset, into), start,
                     [&] { return read_anew(offset, into); });
  }
  Result<size_t> write_some(int64_t, ByteView) override { return refuse(); }
  Result<size_t> append_some(ByteView) override { return refuse(); }
  Result<void> close_handle() override { return current()->close(); }

 private:
  Error refuse() const { return invalid("{}: opened to read only", path().native()); }

  std::shared_ptr<File> current() {
    MutexLock lock(mutex_);
    return inner_;
  }

  // Opens the file again and reads. A file that was removed cannot be opened by its
  // name; then this reads from the file that is still open.
  Result<size_t> read_anew(int64_t offset, ByteSpan into) {
    Result<std::unique_ptr<File>> again = env_.open(path(), options_);
    if (again.ok()) {
      MutexLock lock(mutex_);
      inner_ = *std::move(again);
    }
    return current()->read_at(offset, into);
  }

  Env& env_;
  const OpenOptions options_;
  Mutex mutex_;
  // Shared with reads in flight: they go on with the old file after read_anew() has put
  // a newly opened one in its place.
  std::shared_ptr<File> inner_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<File>> PatientEnv::open(const Path& path, OpenOptions options) {
  if (options.mode != OpenMode::kRead) return inner_.open(path, options);
  auto file =
      HOLDFAST_TRY(patiently(inner_, [&] { return inner_.open(path, options); }));
  return std::unique_ptr<File>(
      std::make_unique<PatientFile>(inner_, options, std::move(file)));
}

Result<FileInfo> PatientEnv::info(const Path& path) {
  return patiently(inner_, [&] { return inner_.info(path); });
}

Result<std::vector<std::string>> PatientEnv::list(const Path& folder) {
  return patiently(inner_, [&] { return inner_.list(folder); });
}

}  // namespace holdfast
