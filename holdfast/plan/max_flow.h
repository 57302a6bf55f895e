// Maximum flow from classes of work to senders, with 128-bit capacities: Dinic's method
// on the bipartite graph source -> class -> sender -> sink.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/base/int128.h"

namespace holdfast {

class BipartiteFlow {
 public:
  // supply[c] flows into class c, and up to capacity[s] flows out of sender s. edges[c]
  // lists the senders of class c, and must outlive this object.
  BipartiteFlow(std::vector<Int128> supply, std::vector<Int128> capacity,
                const std::vector<std::vector<uint32_t>>& edges);

  // True if all supply arrives.
  bool run();
  // The flow from class c to the k-th sender in its list.
  Int128 flow(size_t c, size_t k) const { return flow_[c][k]; }
  // After a run that returned false: the classes on the source side of a minimum cut.
  // Their senders cannot take all of their supply.
  std::vector<bool> short_classes() const;

 private:
  static constexpr int32_t kFar = INT32_MAX;
  struct BackEdge {
    uint32_t from_class;
    uint32_t slot;  // the sender's position in that class's list
  };

  bool compute_levels();
  Int128 push_class(uint32_t c, Int128 limit);
  Int128 push_sender(uint32_t s, Int128 limit);

  std::vector<Int128> supply_, capacity_;  // what is left of each, while run() works
  const std::vector<std::vector<uint32_t>>& edges_;
  std::vector<std::vector<BackEdge>> back_;
  std::vector<std::vector<Int128>> flow_;
  std::vector<int32_t> class_level_, sender_level_;
  std::vector<size_t> class_next_, sender_next_;
};

}  // namespace holdfast
