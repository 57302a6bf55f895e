#include "holdfast/recovery/buddies.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace holdfast {

// Puts the ranks of each host side by side on a circle, and goes around it by as many
// places as the largest host has ranks. That leaves every host that has at most half
// of the ranks, and no larger host could do better.
std::vector<int> choose_buddies(std::span<const int> hosts) {
  const size_t size = hosts.size();
  std::vector<int> circle(size);
  std::iota(circle.begin(), circle.end(), 0);
  std::ranges::stable_sort(circle, {},
                           [&](int rank) { return hosts[static_cast<size_t>(rank)]; });
  std::map<int, size_t> ranks_on;
  size_t most = 0;
  for (const int host : hosts) most = std::max(most, ++ranks_on[host]);
  const size_t places = most == size ? 1 : most;
  std::vector<int> buddies(size);
  for (size_t i = 0; i < size; ++i) {
    buddies[static_cast<size_t>(circle[i])] = circle[(i + places) % size];
  }
  return buddies;
}

}  // namespace holdfast
