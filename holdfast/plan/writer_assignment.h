// The layout ranks -> files: every element of the state gets exactly one writer among the
// ranks that hold it, so that replicas share the writing and nobody writes twice.
#pragma once

#include <optional>

#include "holdfast/state/collection.h"

namespace holdfast {

struct WriterOptions {
  // The host of all files, if they go to shared storage; else each file is on its
  // writer's host.
  std::optional<HostId> shared_storage;
};

// A layout over one file a rank, in order of rank and called after it ("device-3.file"):
// each element once, the busiest writer by its bandwidth as little busy as possible. A
// file's boxes lie one after the other, in order of tensor and box. Fails with kNotFound,
// naming tensor and box, if a part of the state has no holder.
Result<Collection> assign_writers(const Collection& ranks, const Topology& topology,
                                  const WriterOptions& options = {});

}  // namespace holdfast
