// Carries out a plan files -> memory: fills this rank's pieces from a step's shards.
//
// Shards are read by chunks, and every chunk is held against its digest before a byte of
// it is used. A cut along columns touches many chunks of which it needs a part only:
// where that would read more than 1.05 times what it needs and the rows are long enough
// to be worth a read each, the rows alone are read, and their tensors must be checked
// afterwards, by all ranks together (`by_range`, restore.h).
//
// All files are opened before the first byte is read, so that a step which retention
// removes meanwhile is still read to its end; above some hundred descriptors they are
// opened in their turn, and one that is gone then is kNotFound.
#pragma once

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/shard/chunk_reader.h"

namespace holdfast {

// A box that was read without a look at chunk digests, and what it adds to its tensor's
// seal.
struct RangeRead {
  TensorId tensor = 0;  // of the step
  Box box;
  Seal seal;
};

struct PiecesRead {
  int64_t needed = 0;  // bytes of this rank's pieces
  int64_t read = 0;    // bytes read from the disk for them
  std::vector<RangeRead> by_range;
};

// Tensors are found by name or tie; what was tied and is not any more is filled several
// times. kInvalid, with a list, if tensors are missing in the step or have another dtype
// or shape there, or are tied here and have two values there; nothing is touched then. kCorrupt at the first damage, and kIo: the memory
// then has any contents.
Result<PiecesRead> read_pieces(Env& env, const StepFiles& step, const LocalState& into,
                               const ReadOptions& options = {});

// Names of tensors of the step that `into` does not ask for.
std::vector<std::string> unused_tensors(const StepFiles& step, const LocalState& into);

}  // namespace holdfast
