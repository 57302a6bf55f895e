// Helpers that the tests of transports share. Only for *_test.cpp.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "holdfast/base/testing.h"
#include "holdfast/transport/tcp_transport.h"

namespace holdfast {

// Runs the body once for each rank, each on a thread of its own.
inline void on_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] { body(rank); });
}

// The ranks of a job in this process, all connected over loopback.
class TcpRanks {
 public:
  TcpRanks(Env& env, int size, TcpOptions options = {}) {
    options.host = "127.0.0.1";
    std::vector<std::string> addresses;
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(TcpTransport::listen(env, rank, size, options).value());
      addresses.push_back(ranks_.back()->address());
    }
    on_ranks(size,
             [&](int rank) { EXPECT_OK(at(rank).connect(addresses, kNoDeadline)); });
  }

  TcpTransport& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }

 private:
  std::vector<std::unique_ptr<TcpTransport>> ranks_;
};

}  // namespace holdfast
