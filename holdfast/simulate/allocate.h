// Divides workers among jobs by the progress that they bring, as SLAQ and COCI do for
// data-parallel jobs. A job at the start of its loss curve gains more from a worker
// than a job that has converged.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/schedule/curve.h"

namespace holdfast {

struct AllocateOptions {
  double window = 60;       // how many seconds the allocation holds
  double efficiency = 0.9;  // w workers are w^efficiency times as fast as one
  int64_t least = 1;        // the least number of workers for every job
};

// The number of workers for each job, `workers` in all, so that the sum of the losses
// falls most over the next window. Curves start now and are for one worker. Their
// losses are added up, so curves that are not comparable must be scaled first. The
// result is exact if each further worker of a job brings less than the one before,
// which holds for every single exponential and power law. Fails with kInvalid if there
// are too few workers.
Result<std::vector<int64_t>> allocate(std::span<const Curve> curves, int64_t workers,
                                      const AllocateOptions& options = {});

// Repeats the allocation for each window of `length` seconds. Returns how many workers
// each job has at which time.
Result<std::vector<Workers>> allocate_over(std::span<const Curve> curves,
                                           int64_t workers, double length,
                                           const AllocateOptions& options = {});

}  // namespace holdfast
