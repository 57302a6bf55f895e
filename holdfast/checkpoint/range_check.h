// Checks tensors that ranks have read in parts, without checking the digests of chunks:
// the seals of the parts must sum up to the tensor's seal that was saved.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "holdfast/checkpoint/read_pieces.h"

namespace holdfast {

// Returns the names of tensors that cannot be checked because their parts do not cover
// the whole tensor. Fails with kCorrupt for a tensor whose sum is wrong. A part that
// several ranks have read counts once.
Result<std::vector<std::string>> check_ranges(std::span<const RangeRead> ranges,
                                              std::span<const Tensor> tensors,
                                              std::span<const Seal> seals);

// Ranges and names as text and back, for messages between ranks.
std::string print_ranges(std::span<const RangeRead> ranges);
Result<std::vector<RangeRead>> parse_ranges(const std::string& text,
                                            std::span<const Tensor> tensors);
std::string print_names(const std::vector<std::string>& names);
std::vector<std::string> parse_names(const std::string& text);

}  // namespace holdfast
