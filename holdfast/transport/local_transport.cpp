#include "holdfast/transport/local_transport.h"

namespace holdfast {

struct LocalNetwork::Rank {
  explicit Rank(int size) : inbox(size), to_drop(static_cast<size_t>(size)) {}

  bool alive = true;
  Inbox inbox;
  std::vector<int64_t> to_drop;  // messages to lose, by sender
};

class LocalNetwork::Endpoint : public Transport {
 public:
  Endpoint(LocalNetwork& network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(network_.endpoints_.size()); }

  Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) override {
    HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
    return network_.send(rank_, to, tag, bytes, deadline);
  }

  Result<Bytes> recv(int from, Tag tag, Instant deadline) override {
    HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
    return network_.recv(rank_, from, tag, deadline);
  }

  Result<void> barrier(Instant deadline) override {
    HOLDFAST_TRY(network_.gather(*this, {}, deadline).within("barrier"));
    return {};
  }

  Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) override {
    return network_.gather(*this, bytes, deadline).within("all_gather");
  }

 private:
  LocalNetwork& network_;
  const int rank_;
};

LocalNetwork::LocalNetwork(Env& env, int size, size_t queue, int64_t queue_bytes)
    : env_(env), queue_{static_cast<int64_t>(queue), queue_bytes} {
  HOLDFAST_CHECK(size > 0, "{} ranks", size);
  HOLDFAST_CHECK(queue > 0, "a queue without room");
  MutexLock lock(mutex_);
  for (int rank = 0; rank < size; ++rank) {
    endpoints_.push_back(std::make_unique<Endpoint>(*this, rank));
    ranks_.emplace_back(size);
  }
}

LocalNetwork::~LocalNetwork() = default;

LocalNetwork::Rank& LocalNetwork::at(int rank) {
  return ranks_[static_cast<size_t>(rank)];
}

void LocalNetwork::check_rank(int rank) const {
  HOLDFAST_CHECK(rank >= 0 && static_cast<size_t>(rank) < endpoints_.size(),
                 "rank {} of {}", rank, endpoints_.size());
}

Transport& LocalNetwork::endpoint(int rank) {
  check_rank(rank);
  return *endpoints_[static_cast<size_t>(rank)];
}

void LocalNetwork::kill(int rank) {
  check_rank(rank);
  MutexLock lock(mutex_);
  at(rank).alive = false;
  changed_.notify_all();
}

void LocalNetwork::drop(int from, int to, int64_t messages) {
  check_rank(from);
  check_rank(to);
  MutexLock lock(mutex_);
  at(to).to_drop[static_cast<size_t>(from)] += messages;
}

Result<void> LocalNetwork::check_alive(int self, int peer) {
  if (!at(self).alive) return unavailable("rank {}: killed", self);
  if (!at(peer).alive) return unavailable("rank {}: rank {} is gone", self, peer);
  return {};
}

bool LocalNetwork::lose(int from, int to) {
  int64_t& left = at(to).to_drop[static_cast<size_t>(from)];
  if (left == 0) return false;
  --left;
  return true;
}

Result<void> LocalNetwork::send(int from, int to, int64_t tag, ByteView bytes,
                                Instant deadline) {
  check_rank(to);
  MutexLock lock(mutex_);
  HOLDFAST_TRY(check_alive(from, to));
  const QueueLoads& waiting = at(to).inbox.waiting(from);
  // Messages of collective calls have no limit: those calls wait for each other anyway.
  const bool own = tag >= 0;
  while (own && !waiting.has_room(tag, bytes.size(), queue_)) {
    if (env_.now() >= deadline) {
      return timed_out("rank {}: send to rank {}, tag {}: queue of {} is full", from,
                       to, tag, queue_.messages);
    }
    env_.wait_until(changed_, mutex_, deadline);
    HOLDFAST_TRY(check_alive(from, to));
  }
  if (lose(from, to)) return {};
  at(to).inbox.put(from, tag, copy_of(bytes));
  changed_.notify_all();
  return {};
}

Result<Bytes> LocalNetwork::recv(int to, int from, int64_t tag, Instant deadline) {
  check_rank(from);
  MutexLock lock(mutex_);
  Rank& self = at(to);
  while (!self.inbox.has(from, tag)) {
    HOLDFAST_TRY(check_alive(to, from));
    if (env_.now() >= deadline) {
      return timed_out("rank {}: no message of tag {} from rank {} in time", to, tag,
                       from);
    }
    env_.wait_until(changed_, mutex_, deadline);
  }
  if (!self.alive) return unavailable("rank {}: killed", to);
  changed_.notify_all();
  return self.inbox.take_message(from, tag);
}

Result<std::vector<Bytes>> LocalNetwork::gather(const Transport& self, ByteView bytes,
                                                Instant deadline) {
  const int rank = self.rank();
  const int64_t tag = [&] {
    MutexLock lock(mutex_);
    return at(rank).inbox.begin_collective();
  }();
  return gather_from_all(
      env_, self, deadline,
      [&](int to) { return send(rank, to, tag, bytes, deadline); },
      [&](int from, Instant until) { return recv(rank, from, tag, until); });
}

}  // namespace holdfast
