// Checks tensors that ranks have read in parts.
// A seal (seal.h) is a checksum that can be added: the seals of disjoint parts sum up to
// the seal of the whole tensor, which was saved.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "holdfast/checkpoint/read_pieces.h"

namespace holdfast {

// Returns the names of tensors that are not checked at all: their parts do not cover the
// whole tensor, and the digests of some chunks were not checked. Fails with kCorrupt for a tensor whose sum is wrong. A part that
// several ranks have read counts once.
Result<std::vector<std::string>> check_ranges(std::span<const RangeRead> ranges,
                                              std::span<const Tensor> tensors,
                                              std::span<const Seal> seals);

// Ranges, and names of tensors, as text and back, for messages between ranks. Text that
// holds no names gives none: the names are only reported to the user.
std::string encode_ranges(std::span<const RangeRead> ranges);
Result<std::vector<RangeRead>> decode_ranges(const std::string& text,
                                             std::span<const Tensor> tensors);
std::string encode_names(const std::vector<std::string>& names);
std::vector<std::string> decode_names(const std::string& text);

}  // namespace holdfast
