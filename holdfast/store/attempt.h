// The commit protocol: how the files of a step become a checkpoint.
//
//   0. One process owns the run (owner.h). The coordinator checks once, for all ranks,
//      that there is enough free space.
//   1. begin(): the coordinator makes the folder step-N.<attempt>.tmp and syncs the run
//      folder, so that the other ranks can find it. The other ranks call join().
//   2. Each rank writes its files into that folder and syncs their contents. Then it
//      calls sync() to make the files' names durable, and only then it votes.
//   3. commit(): the coordinator checks that every file of the manifest is there with
//      its size. Then it writes and syncs the manifest and syncs the folder.
//   4. The coordinator checks that it still owns the run.
//   5. The coordinator renames the folder to step-N, or to step-N.g2, .g3, ... where
//      that name is taken. It replaces nothing.                     <- the commit point
//   6. The coordinator syncs the run folder. From now on no crash can lose the step.
//   7. The coordinator writes `latest`, as a hint for people. Readers do not need it.
//
// A crash before 5 leaves a folder that readers ignore and sweep() removes. A crash
// between 5 and 6 leaves the folder under its old or its new name; in both cases all
// its files are complete. A failed sync is never repeated: the attempt is dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "holdfast/env/event.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/owner.h"
#include "holdfast/store/run.h"

namespace holdfast {

// An uncommitted step folder. Not thread safe, except that several threads may call
// put_file() with different names at once. The run's Env must outlive the attempt.
// Destroying an attempt that was begun and is not committed abandons it.
class Attempt {
 public:
  // Makes the attempt's folder. Only the coordinator calls it. `events` may be null.
  static Result<Attempt> begin(const Run& run, const Owner& owner, int64_t step,
                               uint64_t attempt, EventSink* events = nullptr);
  // Opens the folder that begin() made. The other ranks call it. Fails with kNotFound
  // if the folder is not there, or was removed since.
  static Result<Attempt> join(const Run& run, int64_t step, uint64_t attempt);

  Attempt(Attempt&& other) noexcept;
  Attempt& operator=(Attempt&& other) noexcept;
  ~Attempt();

  const Path& folder() const { return folder_; }
  int64_t step() const { return name_.step; }
  uint64_t id() const { return name_.attempt; }

  // Writes a new small file and makes its contents durable. Returns the entry for the
  // manifest. Fails with kConflict if there is a file of that name.
  Result<ManifestFile> put_file(const std::string& name, ByteView bytes);
  // Makes the names of all files written so far durable.
  Result<void> sync();

  // Carries out steps 3 to 7 of the protocol. Only the process that called begin() may
  // call it, and only once. Sets step, run, epoch, sequence, attempt and time in the
  // manifest. Returns the committed folder, which is then durable. On failure:
  //   kConflict     another process has taken the run over: nothing is committed
  //   kUnavailable  it cannot be told whether the step is committed; nothing is removed
  //   kIo, "committed as ..., but ..."  readers see the step, but a power failure may
  //                                     lose it
  //   others        nothing is committed
  Result<Path> commit(Manifest manifest);
  bool committed() const { return state_ == State::kCommitted; }

  // Removes the folder of an attempt that was begun and is not committed. Does nothing
  // on ranks that joined: after their vote the coordinator may already be committing
  // the folder.
  Result<void> abandon(std::string_view reason);

 private:
  enum class State { kJoined, kBegun, kUnknown, kCommitted, kOver };

  Attempt(const Run& run, AttemptName name, State state);
  Result<void> check_files(const Manifest& manifest) const;
  Result<Manifest> complete(Manifest manifest) const;
  Result<void> write_manifest(const Manifest& manifest);
  // Carries out step 5 and returns the name under which the step is committed.
  Result<StepName> rename_to_step();
  Result<StepName> resolve_failed_rename(const StepName& tried, const Error& error);
  bool is_own(const StepName& name) const;
  Result<Path> finish(const StepName& name, const Manifest& manifest);
  void write_latest(const StepName& name);

  Run run_;
  AttemptName name_;
  Path folder_;
  State state_;
  std::optional<Owner> owner_;
  EventSink* events_ = nullptr;
};

// Fails with kNoSpace, naming the numbers, unless the run's file system has room for
// `bytes` and for another `reserve` bytes.
Result<void> check_space(const Run& run, int64_t bytes, int64_t reserve);

}  // namespace holdfast
