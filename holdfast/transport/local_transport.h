// A Transport between threads of one process, for tests: it can lose messages, and it
// can end ranks.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"
#include "holdfast/transport/transport.h"
#include "holdfast/transport/transport_internal.h"

namespace holdfast {

// The endpoints of all ranks, and the messages between them. Deadlines are times of
// `env`, which must outlive the network. The network must outlive the use of its
// endpoints. Safe from all threads.
class LocalNetwork {
 public:
  // `queue` messages of together `queue_bytes` of one tag may wait for one
  // receiver from one sender before send blocks. A longer message may wait alone.
  LocalNetwork(Env& env, int size, size_t queue = 1024,
               int64_t queue_bytes = kQueueBytes);
  ~LocalNetwork();

  Transport& endpoint(int rank);

  // Ends the rank: from now on its own calls, and calls that wait for it, give
  // kUnavailable.
  void kill(int rank);
  // Loses the next messages from one rank to another, also those of collective calls.
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
  // Fails with the reason why a call of `self` that needs `peer` cannot be made.
  Result<void> check_alive(int self, int peer) HOLDFAST_REQUIRES(mutex_);
  bool lose(int from, int to) HOLDFAST_REQUIRES(mutex_);

  Env& env_;
  const QueueLimit queue_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  Mutex mutex_;
  Condition changed_;
  std::vector<Rank> ranks_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
