// Chooses for each rank its buddy, the rank that keeps its record.
#pragma once

#include <span>
#include <vector>

namespace holdfast {

// The buddy of each rank, by rank. `hosts` has a number for the host of each rank. Every
// rank is the buddy of exactly one other rank, and the buddy of a rank is on another
// host as often as that is possible. With all ranks on one host, or one rank on each
// host, the buddy is the next rank. A rank that is alone is its own buddy.
std::vector<int> choose_buddies(std::span<const int> hosts);

}  // namespace holdfast
