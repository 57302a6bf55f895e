// What of a step's files goes where in this rank's memory: the plan that fill() carries
// out.
#pragma once

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/state/strided.h"

namespace holdfast {

// Part of a piece of a file goes to a piece of this rank's memory.
struct PlannedRead {
  TensorId tensor;  // of the step
  Box stored;       // the piece in the file
  int64_t offset;   // of it in the file
  int64_t element;  // bytes
  Box box;          // the part that is wanted
  const LocalPiece* to;

  int64_t stored_bytes() const { return stored.elements() * element; }
  int64_t bytes() const { return box.elements() * element; }
  bool whole() const { return box == stored; }
  // The wanted rows, as they lie in the file.
  StridedCopy rows() const {
    return plan_copy(Map::dense(stored, element, offset).narrowed(stored, box),
                     Map::dense(box, element), box.shape(), element);
  }
};

// What comes out of each file, in order of its bytes. kInvalid, with a list, if tensors of
// `into` are missing in the step or are others there. `into` must outlive it.
using ReadPlan = std::vector<std::vector<PlannedRead>>;
Result<ReadPlan> plan_reads(const StepFiles& step, const LocalState& into);

}  // namespace holdfast
