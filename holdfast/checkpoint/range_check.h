// The check of tensors that ranks have read in parts, without their chunks' digests:
// what the parts add to a tensor's seal must sum up to the seal that was saved.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "holdfast/checkpoint/read_pieces.h"

namespace holdfast {

// Names of tensors whose parts do not make up the whole, so that nobody can tell; kCorrupt
// for one whose sum is wrong. Parts that several ranks have read count once.
Result<std::vector<std::string>> check_ranges(std::span<const RangeRead> ranges,
                                              std::span<const Tensor> tensors,
                                              std::span<const Seal> seals);

// For messages between ranks.
std::string print_ranges(std::span<const RangeRead> ranges);
Result<std::vector<RangeRead>> parse_ranges(const std::string& text,
                                            std::span<const Tensor> tensors);
std::string print_names(const std::vector<std::string>& names);
std::vector<std::string> parse_names(const std::string& text);

}  // namespace holdfast
