// Finds single flipped bits by the CRCs of a file. For repair.cpp.
#pragma once

#include <vector>

#include "holdfast/repair/repair.h"

namespace holdfast {

struct CrcRepair {
  std::vector<PlannedByte> bytes{};
  std::vector<Mended> mended{};
};

// Whether something else confirms the change of a byte.
using Confirm = std::function<Result<bool>(const PlannedByte& byte)>;

// Finds the bit of each damaged record of a zip archive or of a TensorFlow checkpoint.
// Fails with kCorrupt if a record has more damage than one bit, or if the result would be
// too uncertain and `confirm` does not confirm it; with kUnsupported for other formats.
Result<CrcRepair> find_by_crc(Env& env, const Found& found, const Confirm& confirm = {});

}  // namespace holdfast
