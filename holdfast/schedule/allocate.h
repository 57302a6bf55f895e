// Who gets the workers: quality-driven allocation, as SLAQ and COCI's data-parallel case
// have it. A job high on its curve gains more from a worker than one that has converged.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/schedule/curve.h"

namespace holdfast {

struct AllocateOptions {
  double window = 60;       // seconds for which the allocation holds
  double efficiency = 0.9;  // w workers are w^efficiency times as fast as one
  int64_t least = 1;        // of workers, for every job
};

// Workers for each job, `workers` in all, so that the sum of losses falls most over the
// next window. Curves start now, are for one worker, and count alike: scale those that
// are not comparable. Exact where more workers bring less and less, as on every single
// exponential or power law. Fails with kInvalid if there are too few workers.
Result<std::vector<int64_t>> allocate(std::span<const Curve> curves, int64_t workers,
                                      const AllocateOptions& options = {});

// The same again and again for `length` seconds: how many workers each job has when.
Result<std::vector<Workers>> allocate_over(std::span<const Curve> curves,
                                           int64_t workers, double length,
                                           const AllocateOptions& options = {});

}  // namespace holdfast
