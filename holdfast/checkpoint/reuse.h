// Pieces that need not be written again, because a committed step of this rank has them:
// equal in name, box and XXH3-128. The new step links the older shard that physically
// holds them (a hard link: the file lives as long as any step that needs it), under the
// name "step-00000400.<attempt>.rank-0000.safetensors", which says where it came from.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "holdfast/base/env.h"
#include "holdfast/store/shard_index.h"

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

}  // namespace holdfast
