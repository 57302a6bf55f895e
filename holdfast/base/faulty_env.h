// An Env that goes wrong on purpose: it passes every call on to another Env, counts it,
// and fails, shortens or crashes at those that the test has chosen.
//
// A crash test runs an operation once to count its calls, then once more for each of
// them:
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
// Calls are counted as the system sees them: a write that is continued after a short
// one counts twice. A submitted transfer runs (and counts) when it is waited for, on the
// waiting thread; close() and the destructor run the rest in the order of submission.
// So a single-threaded test is deterministic. Clock and randomness pass through
// uncounted, and so does the closing of files that are destroyed without close(). Safe
// from several threads.
#pragma once

#include <array>
#include <vector>

#include "holdfast/base/env.h"

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
  kAny,  // to choose with: any of the above
};

// "open", "read", ...
std::string_view name_of(Op op);

struct Call {
  Op op;
  Path path;
};

class FaultyEnv : public Env {
 public:
  // `inner` must outlive it.
  explicit FaultyEnv(Env& inner) : inner_(inner) {}

  // Each means the k-th call of the kind from now on, k = 1 being the next one. Several
  // may be set; each happens once.

  // The call has no effect and fails with the code. After a failed sync, later ones of
  // the same open file succeed without doing anything, as those of an operating system
  // may.
  void fail_at(Op op, int64_t k = 1, ErrorCode code = ErrorCode::kIo);
  // The call, a kRead or kWrite, moves at most `bytes` bytes: at least one for a write,
  // a multiple of kDirectAlignment for a direct file. Only that part takes effect.
  void shorten_at(Op op, int64_t k, size_t bytes);
  // The call has no effect, and it and all later ones fail with kIo.
  void crash_at(Op op, int64_t k = 1);

  bool crashed() const;
  // Calls so far, those that failed included.
  int64_t calls(Op op = Op::kAny) const;
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

  Instant now() override { return inner_.now(); }
  WallTime wall_now() override { return inner_.wall_now(); }
  void sleep_for(Duration duration) override { inner_.sleep_for(duration); }
  void wait_until(Condition& condition, Mutex& mutex, Instant deadline) override
      HOLDFAST_REQUIRES(mutex) {
    inner_.wait_until(condition, mutex, deadline);
  }
  uint64_t random64() override { return inner_.random64(); }

 private:
  class OpenFile;
  static constexpr size_t kOps = static_cast<size_t>(Op::kAny) + 1;

  enum class Kind { kFail, kShorten, kCrash };
  struct Fault {
    Kind kind;
    Op op;
    int64_t at;  // count of the kind at which it happens
    ErrorCode code;
    size_t bytes;
  };

  void add(Op op, int64_t k, Fault fault);
  // Counts the call. An error if it shall fail; else the most bytes that it may move.
  Result<size_t> enter(Op op, const Path& path);

  Env& inner_;
  mutable Mutex mutex_;
  std::array<int64_t, kOps> counts_ HOLDFAST_GUARDED_BY(mutex_){};
  std::vector<Call> log_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<Fault> faults_ HOLDFAST_GUARDED_BY(mutex_);
  bool crashed_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast
