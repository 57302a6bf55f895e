// A Transport between threads of one process, for tests: it can lose messages and
// ranks.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "holdfast/base/env.h"
#include "holdfast/base/mutex.h"
#include "holdfast/base/transport.h"

namespace holdfast {

// The ranks' endpoints and what is on its way between them. Deadlines are times of
// `env`, which must outlive it; it must outlive the use of its endpoints. Safe from all
// threads.
class LocalNetwork {
 public:
  // `queue` messages may wait for one receiver from one sender before send blocks.
  LocalNetwork(Env& env, int size, size_t queue = 1024);
  ~LocalNetwork();

  Transport& endpoint(int rank);

  // The rank is gone: its own calls, and those that wait for it, give kUnavailable.
  void kill(int rank);
  // The next messages from one rank to another are lost, those of collective calls too.
  // The sender does not notice.
  void drop(int from, int to, int64_t messages = 1);

 private:
  class Endpoint;
  // Tags >= 0 are the callers'; collective call number n has tag -n.
  using Channel = std::pair<int, int64_t>;  // sender, tag
  struct Rank {
    bool alive = true;
    std::map<Channel, std::deque<Bytes>> inbox;
    std::vector<int64_t> waiting;  // by sender, callers' messages in the inbox
    std::vector<int64_t> to_drop;  // by sender
    int64_t collectives = 0;
  };

  void check_rank(int rank) const;
  Result<void> send(int from, int to, int64_t tag, ByteView bytes, Instant deadline);
  Result<Bytes> recv(int to, int from, int64_t tag, Instant deadline);
  Result<std::vector<Bytes>> gather(int rank, ByteView bytes, Instant deadline);
  int64_t begin_collective(int rank);

  Rank& at(int rank) HOLDFAST_REQUIRES(mutex_) {
    return ranks_[static_cast<size_t>(rank)];
  }
  // Why a call of `self` that needs `peer` cannot be made.
  Result<void> check_alive(int self, int peer) HOLDFAST_REQUIRES(mutex_);
  bool lose(int from, int to) HOLDFAST_REQUIRES(mutex_);

  Env& env_;
  const size_t queue_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  Mutex mutex_;
  Condition changed_;
  std::vector<Rank> ranks_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
