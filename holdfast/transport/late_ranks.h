// Waiting for other ranks: when a wait takes long, the ranks that are late are named
// while the wait goes on.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// "rank 3", "ranks 1, 2", "ranks 0, 1, 2, 3, 4, ... (12 of them)".
std::string name_ranks(const std::vector<int>& ranks);

// Receives one message from each of these ranks: calls `recv(rank, deadline)`, then
// `keep(rank, result)`. If `watch.tell` is set and some messages have not arrived after
// `watch.after`, it calls `watch.tell` with their ranks.
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
