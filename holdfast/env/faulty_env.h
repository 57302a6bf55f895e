// An Env that fails on purpose, for tests: it passes every call on to another Env,
// counts it, and fails, shortens or crashes at the calls that the test has chosen.
//
// A crash test runs an operation once to count its calls, then once more for each call:
//
//   MemoryEnv disk;  FaultyEnv env(disk);  save(env);  const int64_t n = env.calls();
//   for (int64_t k = 1; k <= n; ++k) {
//     MemoryEnv disk;  FaultyEnv env(disk);
//     env.crash_at(Op::kAny, k);
//     EXPECT_FALSE(save(env).ok());
//     const auto after = disk.after_crash({Unsynced::kReordered, seed});
//     ... what `after` holds must be whole
//   }
//
// Calls are counted as the system sees them: a write that needs two parts counts twice.
// A submitted transfer runs (and counts) when it is waited for, on the waiting thread;
// close() and the destructor run the remaining ones in the order of submission. So a
// single-threaded test is deterministic. Calls for the clock and for random numbers are
// not counted, and neither is the closing of files that are destroyed without close().
// Safe from several threads.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "holdfast/env/env_wrapper.h"

namespace holdfast {

enum class Op {
  kOpen,
  kRead,
  kWrite,  // also appends
  kAllocate,
  kTruncate,
  kSync,  // of contents; also sync_data
  kClose,
  kInfo,  // also File::size
  kList,
  kRemove,  // of files and of folders
  kRename,  // also rename_new
  kLink,
  kCreateFolder,
  kSyncFolder,
  kFreeSpace,
  kAny,  // any of the above, for choosing a call
};

// "open", "read", ...
std::string_view name_of(Op op);

struct Call {
  Op op;
  Path path;
};

class FaultyEnv : public EnvWrapper {
 public:
  // `inner` must outlive this Env.
  using EnvWrapper::EnvWrapper;

  // Each function below chooses the k-th call of the kind from now on; k = 1 is the
  // next call. Several faults may be set; each happens once unless its comment says
  // otherwise.
  //
  // After a failed sync of a file or folder, later syncs of it succeed without doing
  // anything, as an operating system may behave. That holds for everybody who opens it,
  // and for all its names.

  // The call has no effect and fails with the code.
  void fail_at(Op op, int64_t k = 1, ErrorCode code = ErrorCode::kIo);
  // The k-th call and all after it fail like this, as on a disk that stays full.
  void fail_from(Op op, int64_t k = 1, ErrorCode code = ErrorCode::kIo);
  // The next `times` calls of the kind on this path fail with the code, as a bad sector
  // does.
  void fail_file(Op op, Path path, ErrorCode code = ErrorCode::kIo,
                 int64_t times = std::numeric_limits<int64_t>::max());
  // The call has its effect and still fails with the code, as if the answer of a server
  // was lost. An open leaves no open file.
  void fail_after(Op op, int64_t k = 1, ErrorCode code = ErrorCode::kIo);
  // The call, a kRead or kWrite, moves at most `bytes` bytes: at least one for a write,
  // a multiple of kDirectAlignment for a direct file. Only that part takes effect.
  void shorten_at(Op op, int64_t k, size_t bytes);
  // The call has no effect and fails with kIo, and so do all later calls.
  void crash_at(Op op, int64_t k = 1);
  // Runs the function on the same thread before the call, whether the call then fails
  // or not. It stands for what another process does at this moment. The function may
  // use any Env, also this one.
  void before(Op op, int64_t k, std::function<void()> function);

  bool crashed() const;
  // The number of calls so far, including those that failed.
  int64_t calls(Op op = Op::kAny) const;
  // How many bytes were read, or written, so far. `op` is kRead or kWrite.
  int64_t bytes(Op op) const;
  std::vector<Call> log() const;

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override;
  Result<FileInfo> info(const Path& path) override;
  Result<void> remove_file(const Path& path) override;
  Result<void> rename(const Path& from, const Path& to) override;
  Result<void> rename_new(const Path& from, const Path& to) override;
  Result<void> link(const Path& from, const Path& to) override;
  Result<void> create_folder(const Path& path) override;
  Result<void> remove_folder(const Path& path) override;
  Result<std::vector<std::string>> list(const Path& folder) override;
  Result<void> sync_folder(const Path& folder) override;
  Result<int64_t> free_space(const Path& folder) override;
  // It has no files without names, so that every call of a save is one of the above.
  // Env's own functions refuse them; those of EnvWrapper would ask the inner Env.
  Result<std::unique_ptr<File>> create_unnamed(const Path& folder) override {
    return Env::create_unnamed(folder);  // NOLINT(bugprone-parent-virtual-call)
  }
  Result<void> name_file(File& file, const Path& to) override {
    return Env::name_file(file, to);  // NOLINT(bugprone-parent-virtual-call)
  }

 private:
  class OpenFile;
  static constexpr size_t kOps = static_cast<size_t>(Op::kAny) + 1;

  enum class Kind { kFail, kFailFrom, kFailAfter, kShorten, kCrash, kHook };
  struct Fault {
    Kind kind = Kind::kFail;
    Op op = Op::kAny;
    int64_t at = 0;  // happens at this call of its kind
    ErrorCode code = ErrorCode::kIo;
    size_t bytes = 0;
    std::function<void()> function = nullptr;
  };
  // A path whose calls fail.
  struct BadFile {
    Op op = Op::kAny;
    Path path;
    ErrorCode code = ErrorCode::kIo;
    int64_t times = 0;  // how many more calls fail
  };
  // What happens to one call.
  struct Plan {
    std::optional<Error> instead;  // the call is not made and fails with this
    std::optional<Error> after;    // the call is made and fails with this
    size_t most = std::numeric_limits<size_t>::max();  // bytes that the call may move
    std::vector<std::function<void()>> functions;
  };
  using Identity = std::pair<uint64_t, uint64_t>;  // device and inode

  void add(int64_t k, Fault fault);
  // Counts the bytes of a transfer that was made.
  Result<size_t> count_bytes(Op op, Result<size_t> moved);
  // Counts the call and returns what happens to it.
  Plan enter(Op op, const Path& path);
  static void apply(const Fault& fault, Error error, Plan& plan);
  // Counts the call and makes it by `call(most)`, unless a fault makes it fail.
  template <typename Function>
  auto run(Op op, const Path& path, Function call) -> decltype(call(size_t{}));
  // The same for a sync of the file or folder that has this identity.
  template <typename Function>
  Result<void> run_sync(Op op, const Path& path, Identity identity, Function call);
  Identity identity_of(const Path& path);
  // Called for a new file or folder: no sync of it has failed, even if it got the inode
  // number of a removed one whose sync had failed.
  void forget_failed_sync(Identity identity);

  mutable Mutex mutex_;
  std::array<int64_t, kOps> counts_ HOLDFAST_GUARDED_BY(mutex_){};
  std::array<int64_t, kOps> bytes_ HOLDFAST_GUARDED_BY(mutex_){};
  std::vector<Call> log_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<Fault> faults_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<BadFile> bad_files_ HOLDFAST_GUARDED_BY(mutex_);
  std::set<Identity> failed_syncs_ HOLDFAST_GUARDED_BY(mutex_);
  bool crashed_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast
