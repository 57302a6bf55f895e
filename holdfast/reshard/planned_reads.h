// Carries out the moves of a reshard's plan: gives the bytes of the target's files, each
// from the piece of the source that a move names. Counts them, so that what was moved can
// be compared with what was planned. All functions can be called from any thread.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "holdfast/reshard/reshard.h"

namespace holdfast {

class PlannedReads {
 public:
  // `plan` must outlive the reads.
  explicit PlannedReads(const ReshardPlan& plan);

  // Fills `into` with the bytes from `first` on of the stream of a box that a file of the
  // target has. `tensor` is its number in the source. Fails as PieceReader::read(), and
  // with kNotFound if no move of the plan brings a part of the box to the file.
  Result<void> read(HolderId file, TensorId tensor, const Box& box, int64_t first,
                    ByteSpan into) const;

  // The bytes that were read so far.
  int64_t moved() const;
  // Fails with kCorrupt unless what was read for one of `files` files is what the moves
  // bring to it. The holders file, file + files, and so on are those of the file
  // (MegatronTarget::reads()).
  Result<void> check_moved(int64_t file, int64_t files) const;

  // The source as the moves to a target of one file give it: all tensors whole. The reads
  // must outlive the contents.
  Result<Contents> whole_contents() const;

 private:
  // All of a box, in row-major order.
  Result<void> fill(HolderId file, TensorId tensor, const Box& box,
                    ByteSpan dense) const;
  std::span<const Move> moves_to(HolderId file, TensorId tensor) const;

  const ReshardPlan& plan_;
  const HolderId first_file_;         // its number in Plan::holders
  std::vector<TensorId> target_of_;   // the target's number of a tensor of the source
  mutable std::vector<std::atomic<int64_t>> moved_;  // by file
};

}  // namespace holdfast
