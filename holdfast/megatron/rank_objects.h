// What a rank file of Megatron has besides model and optimizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/contents/assembled.h"
#include "holdfast/models/parallel.h"
#include "holdfast/state/object.h"

namespace holdfast::megatron {

// A tensor rank of a stage.
struct RankPlace {
  int64_t tensor = 0;
  int64_t stage = 0;
};

// The `args` of a rank: those of the source with other degrees, where they have them.
Object args_of_rank(const Object& args, const Parallel& parallel, const RankPlace& rank,
                    int64_t padded_rows);

// The states of generators for other numbers of ranks. Each rank needs a stream of its own
// for what tensor parallelism cuts, and the ranks of a stage need the same stream for the
// rest. With more ranks than the source had, there are not enough streams.
class RandomStates {
 public:
  RandomStates() = default;
  // `objects` are those of the source, and must outlive this.
  RandomStates(const Object& objects, const Parallel& parallel);

  int64_t there() const { return there_; }  // how many ranks of the source have states
  bool enough() const { return enough_; }
  // The model-parallel generators are those of the same number of rank, and the others
  // those of the first rank of the stage that had the same place in the pipeline.
  Object state_of(const RankPlace& rank) const;

 private:
  const Object* ranks_ = nullptr;
  Parallel parallel_{};
  int64_t there_ = 0;
  int64_t tp_ = 1;  // of the source
  int64_t pp_ = 1;
  bool enough_ = false;
};

// Replaces tensors that are stored as bytes by tensors, which are added to the list.
Object with_tensors(const Object& object, std::vector<AssembledTensor>& tensors);

}  // namespace holdfast::megatron
