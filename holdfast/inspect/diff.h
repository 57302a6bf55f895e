// Compares two checkpoints, whatever their formats are and however their tensors are
// cut.
//
// Two elements are equal if their bits are equal: two NaNs with the same bits are
// equal, 0.0 and -0.0 are not. For elements that are not equal, numbers say how far
// apart they are (number.h). Tensors are matched by name, and aliases count as names.
// Both sides are read in row-major order through one window each, so that memory use
// does not depend on the size of the tensors.
//
// Objects are compared by value, dicts by key in any order. Objects that hold nothing
// but references to tensors equal no objects at all: such objects only nest names of
// tensors, and the tensors are compared anyway.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

enum class Verdict {
  kEqual,
  kDiffers,  // same dtype and shape, but other values
  kDtype,    // another dtype, and perhaps another shape
  kShape,    // same dtype, but another shape
  kOnlyA,
  kOnlyB,
};

std::string_view name_of(Verdict verdict);  // "equal", "differs", "dtype", ...

// The dtype and shape of a tensor on one side.
struct TensorKind {
  Dtype dtype{};
  Shape shape{};
};

struct TensorDiff {
  std::string name{};
  Verdict verdict = Verdict::kEqual;
  // nullopt if the side does not have the tensor.
  std::optional<TensorKind> a{}, b{};
  // The number of elements that differ. All that follows is set only if it is not 0.
  int64_t differing = 0;
  // The greatest differences. NaN if one of the differing elements is NaN on any side.
  double max_absolute = 0;
  double max_relative = 0;
  std::vector<int64_t> first{};  // index of the first differing element
};

struct DiffReport {
  std::vector<TensorDiff> tensors{};  // in order of name
  // Names the place of the first difference between the objects, and both values there.
  std::optional<std::string> objects{};
  // What could not be read on one of the sides (Contents::left_out), and so was not
  // compared.
  std::vector<std::string> left_out{};
  // How many bytes were compared, counted on one side.
  int64_t bytes = 0;

  int64_t count(Verdict verdict) const;
  // Whether everything was compared and is equal.
  bool equal() const;
};

struct DiffOptions {
  bool objects = true;
  // The size of the window of each side.
  int64_t window_bytes = int64_t{4} << 20;
};

// Fails only if a side cannot be read, with kCorrupt if its digests are wrong. Progress
// is counted in bytes of one side.
Result<DiffReport> diff(const Contents& a, const Contents& b,
                        const DiffOptions& options = {}, const Progress& progress = {});

// Returns, for example, "optimizer.lr: 0.1 against 0.2", or nullopt if the objects are
// equal in the sense above.
std::optional<std::string> first_difference(const Object& a, const Object& b);

}  // namespace holdfast
