// Finds pieces that need not be written again, because an older committed step of this
// rank has them: the tensor's name, the box and the XXH3-128 digest are equal. The new
// step contains a hard link to the older shard that holds the bytes, so the file lives
// as long as any step needs it. The link has the name
// "step-00000400.<attempt>.rank-0000.safetensors", which says which step wrote the
// shard.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"
#include "holdfast/shard/shard_index.h"

namespace holdfast {

struct ReusableFile {
  Path path;       // in the step that the save builds upon
  ShardFile file;  // its name is the one that steps which link it use
};

struct ReusablePiece {
  uint32_t file = 0;  // an index into ReusableStep::files
  int64_t offset = 0;
  Seal seal;
  Digest128 digest;
};

// This rank's pieces in a committed step. Immutable once made.
class ReusableStep {
 public:
  // `index` is this rank's index in the step folder `folder`. Pieces without a digest
  // are not reusable.
  ReusableStep(const Path& folder, uint64_t attempt, const ShardIndex& index);

  const std::string& name() const { return name_; }  // the name of the step folder
  const std::vector<ReusableFile>& files() const { return files_; }
  // Null if the step has no such piece, or its digest is another.
  const ReusablePiece* find(const std::string& tensor, const Box& box,
                            const Digest128& digest) const;

 private:
  std::string name_;
  std::vector<ReusableFile> files_;
  std::map<std::pair<std::string, Box>, ReusablePiece> pieces_;
};

// Decides which committed step the next save builds upon. Rank 0 chooses for all ranks,
// because it also applies retention, which must not remove that step. Safe from several
// threads.
class ReuseHistory {
 public:
  // With `on` false it remembers no step, so all saves are full. Every `full_every`-th
  // choice is a full save.
  ReuseHistory(bool on, int full_every) : on_(on), full_every_(full_every) {}

  // Chooses a step and returns its name; empty for a full save. chosen() returns the
  // same name until taken() is called.
  std::string choose();
  std::string chosen() const;
  void taken();

  // Null if the step is not among the two newest that this rank knows.
  std::shared_ptr<const ReusableStep> find(const std::string& name) const;
  // Remembers a committed step with this rank's index.
  void remember(const Path& folder, uint64_t attempt, const ShardIndex& index);
  // Makes all saves full from now on. Called when an older shard could not be linked.
  void stop();

 private:
  const bool on_;
  const int full_every_;
  mutable Mutex mutex_;
  // The two newest steps: rank 0 may choose before or after this rank has heard of the
  // newest commit.
  std::deque<std::shared_ptr<const ReusableStep>> steps_ HOLDFAST_GUARDED_BY(mutex_);
  std::string chosen_ HOLDFAST_GUARDED_BY(mutex_);
  int since_full_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast
