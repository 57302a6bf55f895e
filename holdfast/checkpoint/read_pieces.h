// Fills this rank's pieces from the shards of a step.
//
// Shards are read by chunks, and the digest of every chunk is checked before a byte of
// it is used. A cut along columns needs only a part of each of many chunks: if reading
// whole chunks would read more than 1.05 times the needed bytes and the rows are long
// enough to be worth a read each, only the rows are read, and all ranks together must
// check their tensors afterwards (`by_range`, restore.h).
//
// A digest shows damage to the file. What was damaged before it was written has a good
// digest, and only the seal shows it. So the bytes are sealed again where they have
// arrived, in this rank's memory. If a stored piece was read as a whole, its seal must
// be the one that was saved, else one damaged word is mended (seal_repair.h). Parts of
// pieces are checked by all ranks together.
//
// All files are opened before the first byte is read, so that a step which retention
// removes meanwhile can still be read to its end. If that would take more than some
// hundred descriptors, each file is opened when its turn comes, and a file that is gone
// by then is kNotFound.
#pragma once

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/shard/chunk_reader.h"

namespace holdfast {

// A part of a stored piece that was read, and what it adds to its tensor's seal.
struct RangeRead {
  TensorId tensor = 0;  // in the step's collection
  Box stored;           // the box of the stored piece
  Box box;              // the part of it
  Seal seal;
  // False if the digests of its chunks were not checked.
  bool digested = false;
};

struct PiecesRead {
  int64_t needed = 0;  // bytes of this rank's pieces
  int64_t read = 0;    // bytes read from the disk for them
  std::vector<RangeRead> by_range;
  std::vector<std::string> mended;  // sentences about words that were mended in memory
};

// Tensors are found by name or alias. If two names were aliases in the step and are
// separate tensors now, both are filled. Fails with kInvalid and a list if tensors are
// missing in the step, have another dtype or shape there, or are aliases here and have
// two values there; no memory is touched then. After kCorrupt (the first damage found)
// and kIo the contents of the memory are undefined.
Result<PiecesRead> read_pieces(Env& env, const StepFiles& step, const LocalState& into,
                               const ReadOptions& options = {});

// The tensor of the step that has the name, or else an alias, of `tensor`.
std::optional<TensorId> find_in(const StepFiles& step, const Tensor& tensor);
// Fails with kInvalid, as read_pieces() does, unless the step has every tensor of this
// rank with the same dtype and shape, and one value for all its names here.
Result<void> check_tensors(const StepFiles& step, const LocalState& into);

// Names of tensors of the step that `into` does not ask for.
std::vector<std::string> unused_tensors(const StepFiles& step, const LocalState& into);

}  // namespace holdfast
