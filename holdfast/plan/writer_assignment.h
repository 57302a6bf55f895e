// Decides which rank writes what. Every element of the state gets exactly one writer
// among the ranks that hold it, so that replicas share the work and no element is
// written twice.
#pragma once

#include <optional>

#include "holdfast/state/collection.h"

namespace holdfast {

struct WriterOptions {
  // The host of all files if they go to shared storage. If not set, each file is on the
  // host of its writer.
  std::optional<HostId> shared_storage;
};

// A layout with one file for each rank, in order of rank; a file has the name of its
// rank ("device-3.file"). Each element is in one file. The elements are shared out so
// that the busiest writer, by its bandwidth, is done as early as possible. The boxes of
// a file stand one after the other, in order of tensor and box. Fails with kNotFound,
// naming tensor and box, if a part of the state has no holder.
Result<Collection> assign_writers(const Collection& ranks, const Topology& topology,
                                  const WriterOptions& options = {});

}  // namespace holdfast
