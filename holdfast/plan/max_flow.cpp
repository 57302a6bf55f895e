#include "holdfast/plan/max_flow.h"

#include <algorithm>
#include <deque>

namespace holdfast {

BipartiteFlow::BipartiteFlow(std::vector<Int128> supply, std::vector<Int128> capacity,
                             const std::vector<std::vector<uint32_t>>& edges)
    : supply_(std::move(supply)),
      capacity_(std::move(capacity)),
      edges_(edges),
      back_(capacity_.size()),
      flow_(edges.size()) {
  for (uint32_t c = 0; c < edges.size(); ++c) {
    flow_[c].assign(edges[c].size(), 0);
    for (uint32_t k = 0; k < edges[c].size(); ++k) back_[edges[c][k]].push_back({c, k});
  }
}

bool BipartiteFlow::run() {
  constexpr Int128 kAll = Int128{1} << 126;
  while (compute_levels()) {
    class_next_.assign(edges_.size(), 0);
    sender_next_.assign(capacity_.size(), 0);
    for (uint32_t c = 0; c < edges_.size(); ++c) {
      if (supply_[c] > 0) supply_[c] -= push_class(c, std::min(supply_[c], kAll));
    }
  }
  return std::ranges::all_of(supply_, [](Int128 left) { return left == 0; });
}

// Computes the distances from the classes that still have supply. True if a sender is
// reached that still has capacity.
bool BipartiteFlow::compute_levels() {
  class_level_.assign(edges_.size(), kFar);
  sender_level_.assign(capacity_.size(), kFar);
  std::deque<uint32_t> queue;  // classes
  for (uint32_t c = 0; c < edges_.size(); ++c) {
    if (supply_[c] > 0) class_level_[c] = 0, queue.push_back(c);
  }
  bool reached = false;
  while (!queue.empty()) {
    const uint32_t c = queue.front();
    queue.pop_front();
    for (const uint32_t s : edges_[c]) {
      if (sender_level_[s] != kFar) continue;
      sender_level_[s] = class_level_[c] + 1;
      reached |= capacity_[s] > 0;
      for (const BackEdge& edge : back_[s]) {
        if (flow_[edge.from_class][edge.slot] > 0 &&
            class_level_[edge.from_class] == kFar) {
          class_level_[edge.from_class] = sender_level_[s] + 1;
          queue.push_back(edge.from_class);
        }
      }
    }
  }
  return reached;
}

Int128 BipartiteFlow::push_class(uint32_t c, Int128 limit) {
  Int128 pushed = 0;
  for (size_t& k = class_next_[c]; k < edges_[c].size(); ++k) {
    const uint32_t s = edges_[c][k];
    if (sender_level_[s] != class_level_[c] + 1) continue;
    const Int128 more = push_sender(s, limit - pushed);
    flow_[c][k] += more;
    pushed += more;
    if (pushed == limit) return pushed;
  }
  return pushed;
}

Int128 BipartiteFlow::push_sender(uint32_t s, Int128 limit) {
  Int128 pushed = std::min(capacity_[s], limit);
  capacity_[s] -= pushed;
  if (pushed == limit) return pushed;
  for (size_t& k = sender_next_[s]; k < back_[s].size(); ++k) {
    const BackEdge& edge = back_[s][k];
    Int128& used = flow_[edge.from_class][edge.slot];
    if (used == 0 || class_level_[edge.from_class] != sender_level_[s] + 1) continue;
    const Int128 more = push_class(edge.from_class, std::min(used, limit - pushed));
    used -= more;
    pushed += more;
    if (pushed == limit) return pushed;
  }
  return pushed;
}

std::vector<bool> BipartiteFlow::short_classes() const {
  std::vector<bool> reached(edges_.size());
  for (size_t c = 0; c < edges_.size(); ++c) reached[c] = class_level_[c] != kFar;
  return reached;
}

}  // namespace holdfast
