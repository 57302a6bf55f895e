// Checks tensors that ranks have read in parts.
// A seal (seal.h) is a checksum that can be added: the seals of the parts of a stored
// piece sum up to the seal of the piece, which was saved.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/checkpoint/read_pieces.h"

namespace holdfast {

// A stored piece, by its tensor and its box.
using PieceBox = std::pair<TensorId, Box>;
// The seals that were saved. A piece that was not sealed is not in it.
using PieceSeals = std::map<PieceBox, Seal>;
PieceSeals seals_of_pieces(const StepFiles& step);

// Returns the names of tensors that are not checked at all: parts of a stored piece do
// not cover it, and the digests of their chunks were not checked. Fails with kCorrupt
// for a piece whose sum is wrong. A part that several ranks have read counts once.
Result<std::vector<std::string>> check_ranges(std::span<const RangeRead> ranges,
                                              std::span<const Tensor> tensors,
                                              const PieceSeals& seals);

// Ranges, and names of tensors, as text and back, for messages between ranks. Text that
// holds no names gives none: the names are only reported to the user.
std::string encode_ranges(std::span<const RangeRead> ranges);
Result<std::vector<RangeRead>> decode_ranges(const std::string& text,
                                             std::span<const Tensor> tensors);
std::string encode_names(const std::vector<std::string>& names);
std::vector<std::string> decode_names(const std::string& text);

}  // namespace holdfast
