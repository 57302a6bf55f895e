// How the files of a target are written, continued, checked and published. What kind of
// files they are is up to classes that derive from TargetWriter.
//
//   1. The hidden folder ".NAME.reshard" is a run, only for its owner: two processes never
//      write the same target.
//   2. What an earlier call for the same source and target has left is kept; anything else
//      is removed.
//   3. Each file is written, several at once, unless an earlier call has finished it. A
//      finished file is known by its name or by its index.
//   4. When all files are there, the seals of the target are compared with those of the
//      source. If one differs, the files are removed, so that no later call keeps them.
//   5. The target gets its name, and the hidden folder goes.
#pragma once

#include <optional>

#include "holdfast/base/mutex.h"
#include "holdfast/reshard/planned_reads.h"
#include "holdfast/reshard/reshard_internal.h"
#include "holdfast/store/run.h"

namespace holdfast {

class TargetWriter {
 public:
  virtual ~TargetWriter() = default;
  // Called once.
  Result<Resharded> write();

 protected:
  // `counted` is how many bytes are counted in all.
  TargetWriter(Env& env, const ReshardPlan& plan, const Path& to,
               const ReshardOptions& options, int64_t files, int64_t counted);

  // Makes the hidden folder ready to write files.
  virtual Result<void> begin(const Run& run) = 0;
  // Takes over a file that an earlier call has finished, and returns its tensors' bytes.
  // Fails if there is none. Called by several threads, each with another file.
  virtual Result<int64_t> load_finished(int64_t file) = 0;
  // Writes a file of what read() gives. Called like load_finished().
  virtual Result<void> write_file(int64_t file) = 0;
  // When all files are there.
  virtual Result<void> join_files() { return {}; }
  // Returns how many seals were compared. kCorrupt if one differs.
  virtual Result<int64_t> check_seals() = 0;
  // Removes all files that were written. The owner was checked.
  virtual Result<void> remove_files() = 0;
  // What is left to do when the seals are equal.
  virtual Result<void> commit(const Run&) { return {}; }
  // Gives the target its name. The owner was checked.
  virtual Result<void> publish() = 0;
  // Gives up the hidden run after the target has got its name.
  virtual void leave() = 0;

  // PlannedReads::read(). Counts the bytes, and fails if somebody has asked to stop.
  Result<void> read(HolderId file, TensorId tensor, const Box& box, int64_t first,
                    ByteSpan into);

  Env& env_;
  const ReshardPlan& plan_;
  const Path to_;
  const ReshardOptions& options_;
  const Path work_;   // the hidden run
  const Path files_;  // its finished files
  Counter counter_;
  std::optional<Owner> owner_;  // set first of all
  Resharded done_;

 private:
  Result<void> write_owned(const Run& run);
  Result<void> begin_or_continue(const Run& run);
  Result<void> write_files();
  void write_or_keep(int64_t file);
  Result<int64_t> check_or_remove();

  const PlannedReads reads_;
  Mutex mutex_;
  std::optional<Error> error_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
