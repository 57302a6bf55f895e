// An Env in memory that can lose power: a disk, a clock and random numbers that belong
// to the test. Deterministic: the same calls give the same answers.
//
// What was not synced is volatile (env.h), strictly: a file's sync does not save its
// name, a folder's sync saves neither contents nor the names in folders below. Real
// file systems often keep more; what works here works on all that keep the promises of
// POSIX. after_crash() shows what a power loss leaves.
//
// Paths are taken from the root, "a" and "/a" are the same; there are no symbolic
// links. A submitted transfer runs when it is waited for, and not before, so that a sync
// that comes too early or memory that is changed too early does its harm. Transfers of
// files opened direct must be aligned as on a real disk.
#pragma once

#include <memory>

#include "holdfast/env/env.h"

namespace holdfast {

class MemoryDisk;

// What becomes of writes and names that were not synced.
enum class Unsynced {
  kKept,       // all are there
  kLost,       // none are
  kReordered,  // a random choice of them is, by sectors of 512 bytes and by names
};

struct CrashPolicy {
  Unsynced unsynced = Unsynced::kLost;
  uint64_t seed = 0;  // of the choice
};

class MemoryEnv : public Env {
 public:
  explicit MemoryEnv(uint64_t seed = 0);
  ~MemoryEnv() override;

  // A new Env with what a power loss at this moment would leave of this one, which
  // stays as it is. The clock goes on from the same time.
  std::unique_ptr<MemoryEnv> after_crash(CrashPolicy policy) const;

  // Bytes that the files can have together; without limit at first.
  void set_capacity(int64_t bytes);
  // The clock moves only by this and sleep_for. Both of its times start at
  // 1,000,000,000 seconds.
  void advance(Duration duration);

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

  Instant now() override;
  WallTime wall_now() override;
  void sleep_for(Duration duration) override;
  void wait_until(Condition& condition, Mutex& mutex, Instant deadline) override
      HOLDFAST_REQUIRES(mutex);
  uint64_t random64() override;

 private:
  struct State;
  class OpenFile;
  explicit MemoryEnv(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace holdfast
