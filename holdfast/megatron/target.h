// A state as Megatron would save it with other degrees of tensor and pipeline parallelism.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "holdfast/contents/assembled.h"
#include "holdfast/megatron/megatron.h"
#include "holdfast/models/parallel.h"

namespace holdfast {

// What is not in the objects of the source.
struct MegatronOptions {
  // The number of words without pad rows. 0: as `args` tell it. Megatron pads the
  // vocabulary to a multiple of 128 * tp (args.make_vocab_size_divisible_by).
  int64_t vocabulary = 0;
};

// Pad rows that both numbers of ranks need keep their values. If more are needed, they are
// copies of a pad row that is there, because rows of zeros would take part in the softmax
// with another weight. Notes say what was done.
class MegatronTarget {
 public:
  // `source` has objects of Megatron (is_megatron_objects()). Failures:
  //   kInvalid      degrees that do not divide layers or heads, rules that Megatron does
  //                 not have (stacked experts, components of columns), or a vocabulary that
  //                 is not known and would have to be padded in another way
  //   kUnsupported  expert parallelism, ZeRO or interleaved stages
  static Result<MegatronTarget> create(std::shared_ptr<const Contents> source,
                                       const RuleSet& rules, const Parallel& parallel,
                                       const MegatronOptions& options);
  ~MegatronTarget();
  MegatronTarget(MegatronTarget&&) noexcept;
  MegatronTarget& operator=(MegatronTarget&&) noexcept;

  int64_t files() const;
  // Relative to the target: "iter_0000400/mp_rank_00_000/model_optim_rng.pt".
  std::string file_name(int64_t file) const;
  std::string iteration_folder() const;  // "iter_0000400"
  std::string tracker_text() const;      // of latest_checkpointed_iteration.txt
  // What a file has. When its tensors are read, `read` gives the boxes of the source.
  Result<Contents> contents_of(int64_t file, const ReadForFile& read) const;
  // The bytes of the tensors of all files.
  int64_t bytes() const;
  // What is read of the source for the files: the tensors of the source, in a layout whose
  // holders are the files. Without pad rows that are added. Holder number i belongs to the
  // file i % files(); a file has a further holder for a tensor that is in it again.
  const Collection& reads() const;
  const std::vector<std::string>& notes() const;

 private:
  class State;
  explicit MegatronTarget(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace holdfast
