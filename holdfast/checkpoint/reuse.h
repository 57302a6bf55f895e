// Pieces that need not be written again, because a committed step of this rank has them:
// equal in name, box and XXH3-128. The new step links the older shard that physically
// holds them (a hard link: the file lives as long as any step that needs it), under the
// name "step-00000400.<attempt>.rank-0000.safetensors", which says where it came from.
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
  Path path;       // in the step that is built upon
  ShardFile file;  // under the name that it has in steps that link it
};

struct ReusablePiece {
  uint32_t file = 0;  // in ReusableStep::files
  int64_t offset = 0;
  Seal seal;
  Digest128 digest;
};

// What a committed step has of this rank's pieces. Immutable once made.
class ReusableStep {
 public:
  // `index` is this rank's in the step folder `folder`. Pieces without a digest are not
  // reusable.
  ReusableStep(const Path& folder, uint64_t attempt, const ShardIndex& index);

  const std::string& name() const { return name_; }  // of the step folder
  const std::vector<ReusableFile>& files() const { return files_; }
  // Null if there is no such piece, or it is another.
  const ReusablePiece* find(const std::string& tensor, const Box& box,
                            const Digest128& digest) const;

 private:
  std::string name_;
  std::vector<ReusableFile> files_;
  std::map<std::pair<std::string, Box>, ReusablePiece> pieces_;
};

// Which committed step the next save builds upon. Rank 0 chooses for all, so that retention,
// which it does, knows what it must spare. Safe from several threads.
class ReuseHistory {
 public:
  // Off, it remembers and chooses nothing. Every `full_every`-th choice is a full save.
  ReuseHistory(bool on, int full_every) : on_(on), full_every_(full_every) {}

  // The name of the step; empty for a full save. It is chosen() until it is taken().
  std::string choose();
  std::string chosen() const;
  void taken();

  // Null if it is not, or no longer, known here.
  std::shared_ptr<const ReusableStep> find(const std::string& name) const;
  // A step was committed, with this rank's index.
  void remember(const Path& folder, uint64_t attempt, const ShardIndex& index);
  // Links cannot be made: all saves are full from now on.
  void stop();

 private:
  const bool on_;
  const int full_every_;
  mutable Mutex mutex_;
  // The two newest: a rank may hear of a commit before or after rank 0 chooses.
  std::deque<std::shared_ptr<const ReusableStep>> steps_ HOLDFAST_GUARDED_BY(mutex_);
  std::string chosen_ HOLDFAST_GUARDED_BY(mutex_);
  int since_full_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool stopped_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast
