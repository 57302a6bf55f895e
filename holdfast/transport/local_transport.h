// A Transport between threads of one process, for tests: it can lose messages and
// ranks.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"
#include "holdfast/transport/transport.h"

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
  struct Rank;

  void check_rank(int rank) const;
  Result<void> send(int from, int to, int64_t tag, ByteView bytes, Instant deadline);
  Result<Bytes> recv(int to, int from, int64_t tag, Instant deadline);
  Result<std::vector<Bytes>> gather(const Transport& self, ByteView bytes,
                                    Instant deadline);

  Rank& at(int rank) HOLDFAST_REQUIRES(mutex_);
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
