// Plans which bytes of a step's files go where in this rank's memory. read_pieces()
// carries the plan out.
#pragma once

#include "holdfast/checkpoint/step_files.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/state/seal.h"
#include "holdfast/state/strided.h"

namespace holdfast {

// One read: a part of a stored piece goes to a piece in this rank's memory.
struct PlannedRead {
  TensorId tensor;  // in the step's collection
  Box stored;       // the box of the piece in the file
  int64_t offset;   // where the piece begins in the file
  int64_t element;  // bytes of an element
  Box box;          // the part of `stored` that is wanted
  const LocalPiece* to;
  Seal sealed{};  // the seal of the stored piece; no bytes if it was not sealed

  int64_t stored_bytes() const { return stored.elements() * element; }
  int64_t bytes() const { return box.elements() * element; }
  bool whole() const { return box == stored; }
  // A copy from the file to dense memory. It says how long the contiguous rows in the
  // file are.
  StridedCopy rows() const {
    return plan_copy(Map::dense(stored, element, offset).narrowed(stored, box),
                     Map::dense(box, element), box.shape(), element);
  }
};

// The reads of each file, in the order of their bytes. plan_reads() fails with kInvalid
// and a list if tensors of `into` are missing in the step or have another dtype or
// shape there. `into` must outlive the plan.
using ReadPlan = std::vector<std::vector<PlannedRead>>;
Result<ReadPlan> plan_reads(const StepFiles& step, const LocalState& into);

}  // namespace holdfast
