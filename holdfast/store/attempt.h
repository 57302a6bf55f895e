// The commit protocol: how the files of a step become a checkpoint.
//
//   0. Somebody owns the run (owner.h). Space is checked once for all ranks.
//   1. begin(): the coordinator makes the folder step-N.<attempt>.tmp and syncs the run
//      folder, so that others can find it. They join().
//   2. Each rank writes its files there and syncs their contents, then sync()s the folder
//      for their names, and only then votes.
//   3. commit(): the coordinator finds every file that the manifest names, with its size;
//      writes the manifest and syncs it; syncs the attempt's folder.
//   4. It looks whether it still owns the run.
//   5. The folder is renamed to step-N, or step-N.g2, .g3, ... where that is taken,
//      replacing nothing.                                             <- the commit point
//   6. The run folder is synced: now no crash can lose it.
//   7. `latest` is written, as a hint for people; readers do not need it.
//
// A crash before 5 leaves a folder that readers ignore and sweep() removes. A crash
// between 5 and 6 leaves one name or the other, and both are whole. A failed sync is
// never repeated: the attempt is dropped.
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

// An uncommitted step folder. Not thread safe, except put_file for different names. The
// run's Env must outlive it. Destroying one that was begun and is not committed abandons
// it.
class Attempt {
 public:
  // For the coordinator. `events` may be null.
  static Result<Attempt> begin(const Run& run, const Owner& owner, int64_t step,
                               uint64_t attempt, EventSink* events = nullptr);
  // For the other ranks, after begin(). kNotFound if it is not there (any more).
  static Result<Attempt> join(const Run& run, int64_t step, uint64_t attempt);

  Attempt(Attempt&& other) noexcept;
  Attempt& operator=(Attempt&& other) noexcept;
  ~Attempt();

  const Path& folder() const { return folder_; }
  int64_t step() const { return name_.step; }
  uint64_t id() const { return name_.attempt; }

  // A new small file, its contents durable; what the manifest says of it. kConflict if
  // there is one.
  Result<ManifestFile> put_file(const std::string& name, ByteView bytes);
  // Makes the names of all files so far durable.
  Result<void> sync();

  // Steps 3 to 7, by the one that began it, once. Fills in step, run, epoch, sequence,
  // attempt and time of the manifest. The committed folder, durable. On failure:
  //   kConflict     somebody has taken the run over: nothing is committed
  //   kUnavailable  it could not be told whether it is committed; nothing is removed
  //   kIo, "committed as ..., but ..."  readers see it, but a power failure may lose it
  //   others        nothing is committed
  Result<Path> commit(Manifest manifest);
  bool committed() const { return state_ == State::kCommitted; }

  // Removes the folder of one that was begun; never a committed one. Ranks that joined
  // remove nothing: after their vote the coordinator may be committing it.
  Result<void> abandon(std::string_view reason);

 private:
  enum class State { kJoined, kBegun, kUnknown, kCommitted, kOver };

  Attempt(const Run& run, AttemptName name, State state);
  Result<void> check_files(const Manifest& manifest) const;
  Result<Manifest> complete(Manifest manifest) const;
  Result<void> write_manifest(const Manifest& manifest);
  // Step 5: the name it got.
  Result<StepName> rename_to_step();
  Result<StepName> look_after(const StepName& tried, const Error& error);
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

// kNoSpace, with the numbers, unless the run's file system has room for that many bytes
// and still `reserve` to spare.
Result<void> check_space(const Run& run, int64_t bytes, int64_t reserve);

}  // namespace holdfast
