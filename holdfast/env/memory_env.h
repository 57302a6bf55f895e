// An Env in memory that can lose power: its disk, clock and random numbers belong to
// the test. Deterministic: the same calls give the same answers.
//
// What was not synced can be lost, exactly by the rules of env.h: the sync of a file
// does not make its name durable, and the sync of a folder makes neither contents nor
// names in folders below it durable. Real file systems often keep more; what works here
// works on all file systems that keep the promises of POSIX. after_crash() shows what a
// power loss leaves.
//
// All paths start at the root, so "a" and "/a" are the same. There are no symbolic
// links. A submitted transfer runs only when it is waited for, so that a test notices a
// sync that comes too early, and memory that is changed too early. Transfers of files
// opened direct must be aligned as on a real disk.
#pragma once

#include <memory>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"
#include "holdfast/env/file.h"

namespace holdfast {

class MemoryDisk;

// What a power loss does to writes and names that were not synced.
enum class Unsynced {
  kKept,       // all survive
  kLost,       // none survives
  kReordered,  // a random choice of names and of 512-byte sectors survives
};

struct CrashPolicy {
  Unsynced unsynced = Unsynced::kLost;
  uint64_t seed = 0;  // of the random choice
};

class MemoryEnv : public Env {
 public:
  explicit MemoryEnv(uint64_t seed = 0);
  ~MemoryEnv() override;

  // A new Env with what a power loss at this moment would leave of this Env. This Env
  // stays as it is. The clock of the new one goes on from the same time.
  std::unique_ptr<MemoryEnv> after_crash(CrashPolicy policy) const;

  // Limits the bytes of all files together. There is no limit at first.
  void set_capacity(int64_t bytes);
  // Moves the clock. It moves only by this and by sleep_for. now() and wall_now() both
  // start at 1,000,000,000 seconds.
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
