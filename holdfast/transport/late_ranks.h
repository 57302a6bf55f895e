// Waits for other ranks that take long: who is missing is told while the wait goes on.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/env/env.h"

namespace holdfast {

// Told once by every wait that takes longer than `after`: the ranks that it waits for. The
// wait goes on. `tell` is called by the thread that waits.
struct LateRanks {
  Duration after{};
  std::function<void(const std::vector<int>& missing)> tell{};
};

// "rank 3", "ranks 1, 2", "ranks 0, 1, 2, 3, 4, ... (12 of them)".
std::string name_ranks(const std::vector<int>& ranks);

// Receives from each of these ranks: `recv(rank, deadline)`, and `keep(rank, result)` for
// what came of it. With a watch, those that have not come after a while are told to it.
void receive_from(Env& env, const LateRanks& watch, std::vector<int> ranks,
                  Instant deadline, const auto& recv, const auto& keep) {
  const Instant soon = env.now() + watch.after;
  if (watch.tell != nullptr && soon < deadline) {
    std::vector<int> missing;
    for (const int rank : ranks) {
      auto received = recv(rank, soon);
      if (!received.ok() && received.error().code() == ErrorCode::kTimeout) {
        missing.push_back(rank);
      } else {
        keep(rank, std::move(received));
      }
    }
    if (!missing.empty()) watch.tell(missing);
    ranks = std::move(missing);
  }
  for (const int rank : ranks) keep(rank, recv(rank, deadline));
}

}  // namespace holdfast
