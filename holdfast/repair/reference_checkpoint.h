// Another checkpoint as a reference for what a damaged file was. For repair.cpp.
#pragma once

#include <span>

#include "holdfast/repair/repair.h"

namespace holdfast {

class ReferenceCheckpoint {
 public:
  static Result<ReferenceCheckpoint> open(Env& env, const Path& path);

  const Path& path() const { return path_; }

  // The elements of a tensor that differ, as changes that make them what the reference has.
  // Fails with kNotFound if the reference has no such tensor, with kConflict if it has
  // another dtype or shape, and with kCorrupt if more than kMostDifferent elements
  // differ: then it is no copy.
  static constexpr int64_t kMostDifferent = int64_t{1} << 20;
  Result<std::vector<PlannedFlip>> differences(const Contents& contents,
                                               const std::string& tensor) const;

  // The seal of a tensor of the reference.
  Result<Seal> seal_of(const std::string& tensor) const;

  // Whether the change of a byte makes an element what the reference has. `file` is as in
  // PlannedByte, and `tensors` are those that may have the byte.
  Result<bool> confirms(Env& env, const Found& found, const Contents& contents,
                        std::span<const std::string> tensors,
                        const PlannedByte& byte) const;

 private:
  ReferenceCheckpoint(Path path, OpenedAny opened)
      : path_(std::move(path)), opened_(std::move(opened)) {}

  Result<TensorId> find(const Tensor& tensor) const;

  Path path_;
  OpenedAny opened_;
};

}  // namespace holdfast
