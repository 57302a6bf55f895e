// Compares two checkpoints, whatever their formats and however they are cut.
//
// Bits decide what is equal: NaNs of the same bits are, 0.0 and -0.0 are not. Numbers then
// say how far apart the others are (number.h). Tensors are matched by name, ties being
// names too, and read in canonical order through two windows, so that memory is bounded
// whatever their size.
//
// Objects are compared by value, dicts by key and in any order. A tree that holds nothing
// but tensors equals none at all: it only nests names, which are compared already.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/formats/contents.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

enum class Verdict {
  kEqual,
  kDiffers,  // same dtype and shape, other values
  kDtype,    // another dtype (and perhaps shape)
  kShape,    // another shape
  kOnlyA,
  kOnlyB,
};

std::string_view name_of(Verdict verdict);  // "equal", "differs", "dtype", ...

// A side of the comparison, where the tensor is there.
struct TensorKind {
  Dtype dtype{};
  Shape shape{};
};

struct TensorDiff {
  std::string name{};
  Verdict verdict = Verdict::kEqual;
  std::optional<TensorKind> a{}, b{};
  // Where values differ:
  int64_t differing = 0;  // elements
  // Over the differing elements; NaN if any of them is one on either side.
  double max_absolute = 0;
  double max_relative = 0;
  std::vector<int64_t> first{};  // index of the first differing element
};

struct DiffReport {
  std::vector<TensorDiff> tensors{};  // in order of name
  // The place of the first difference between the objects, and what is there.
  std::optional<std::string> objects{};
  int64_t bytes = 0;  // of values compared, on one side

  int64_t count(Verdict verdict) const;
  bool equal() const;
};

struct DiffOptions {
  bool objects = true;
  int64_t window_bytes = int64_t{4} << 20;  // of each side
};

// Fails only if a side cannot be read (kCorrupt where its digests are wrong). Progress is
// in bytes of one side.
Result<DiffReport> diff(const Contents& a, const Contents& b,
                        const DiffOptions& options = {}, const Progress& progress = {});

// "optimizer.lr: 0.1 against 0.2", or nullopt if they are equal as above.
std::optional<std::string> first_difference(const Object& a, const Object& b);

}  // namespace holdfast
