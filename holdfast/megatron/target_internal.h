// What MegatronTarget knows: target.cpp plans it, and target_files.cpp puts files together.
#pragma once

#include <map>
#include <optional>

#include "holdfast/megatron/objects.h"
#include "holdfast/megatron/optimizer.h"
#include "holdfast/megatron/rank_objects.h"
#include "holdfast/megatron/target.h"
#include "holdfast/megatron/vocabulary.h"

namespace holdfast {

class MegatronTarget::State {
 public:
  State(std::shared_ptr<const Contents> source, const RuleSet& rules,
        const Parallel& parallel)
      : source_(std::move(source)), rules_(rules), parallel_(parallel) {}

  Result<void> plan(const MegatronOptions& options);

  int64_t files() const { return parallel_.tp * parallel_.pp; }
  std::string file_name(int64_t file) const;
  std::string iteration_folder() const;
  std::string tracker_text() const;
  Result<Contents> contents_of(int64_t file, const ReadForFile& read) const;
  int64_t bytes() const { return bytes_; }
  const Collection& reads() const { return *reads_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  // A value of the model, and which stage has it.
  struct Entry {
    megatron::Leaf leaf{};
    std::optional<TensorId> tensor{};
    Rule rule{};
    int64_t stage = 0;
  };

  Result<void> check_parallel() const;
  Result<void> check_optimizer() const;
  Result<void> add_entries();
  void add_head();
  Result<void> pad_vocabulary(int64_t asked);
  void plan_random_states();
  Result<void> plan_reads();

  bool is_vocabulary(const Entry& entry, TensorId tensor) const;
  Shape shape_of(const Entry& entry, TensorId tensor) const;
  int64_t rows_there(int64_t rank) const;
  std::vector<Box> boxes_of(const Entry& entry, TensorId tensor, int64_t rank) const;
  std::optional<AssembledPart> padding_of(const Entry& entry, TensorId tensor,
                                          int64_t rank) const;
  std::optional<TensorId> find_state(const Entry& entry, const std::string& slot) const;

  // The parts of one rank while its file is put together.
  struct RankParts {
    // A box that is read of the source.
    struct Read {
      HolderId holder;
      TensorId tensor;
      Box box;
    };
    int64_t file = 0;
    ReadForFile read{};
    megatron::RankPlace place{};
    std::vector<AssembledTensor> tensors{};
    std::vector<const Entry*> parameters{};
    std::vector<megatron::LocalParameter> local{};  // the same ones
    std::map<TensorId, int64_t> times{};  // how often the file has a tensor
    std::vector<Read> reads{};
    int64_t bytes = 0;  // of the parts
  };
  RankParts begin_rank(int64_t file, const ReadForFile& read) const;
  Object objects_of(RankParts& rank) const;
  Object add_part(RankParts& rank, const Entry& entry, TensorId tensor) const;
  Object model_of(RankParts& rank) const;
  Object optimizer_of(RankParts& rank, const Object& common) const;

  const std::shared_ptr<const Contents> source_;
  const RuleSet rules_;
  const Parallel parallel_;
  std::vector<Entry> entries_;
  int64_t layers_ = 0;
  megatron::PaddedRows rows_;
  // For pad rows that the source does not have: the bytes of a pad row, by tensor.
  std::map<TensorId, Bytes> pad_rows_;
  megatron::RandomStates random_;
  std::vector<std::string> notes_;
  std::optional<Collection> reads_;
  int64_t bytes_ = 0;
};

}  // namespace holdfast
