#include "holdfast/transport/tcp_transport.h"

#include <algorithm>
#include <optional>

#include "holdfast/transport/tcp_loop_internal.h"
#include "holdfast/transport/transport_internal.h"

namespace holdfast {

// Where messages wait for their receivers, and callers for messages. The loop brings what
// arrives; it takes the loop's lock while it has its own, and never the other way round.
class TcpTransport::Office : public TcpEvents {
 public:
  Office(Env& env, int rank, int size, const TcpOptions& options)
      : rank_(rank),
        size_(size),
        env_(env),
        queue_(static_cast<int64_t>(options.queue)),
        most_bytes_(options.most_bytes),
        inbox_(size),
        peers_(static_cast<size_t>(size)) {
    MutexLock lock(mutex_);
    at(rank).up = true;
  }

  void set_loop(std::unique_ptr<TcpLoop> loop) { loop_ = std::move(loop); }
  TcpLoop& loop() { return *loop_; }

  Result<void> connect(const std::vector<SocketAddress>& addresses, Instant deadline);
  void close();
  Result<void> send(int to, int64_t tag, const std::shared_ptr<const Bytes>& bytes,
                    Instant deadline);
  Result<Bytes> recv(int from, int64_t tag, Instant deadline);
  Result<std::vector<Bytes>> gather(const Transport& self, ByteView bytes,
                                    Instant deadline);

  void on_up(int rank) override;
  Result<void> on_frame(int rank, Frame frame) override;
  void on_gone(int rank, const std::string& why) override;

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  struct Peer {
    bool up = false;
    std::optional<std::string> gone{};  // why
    int64_t unreceived = 0;             // messages for it that it has not received yet
  };

  Peer& at(int rank) HOLDFAST_REQUIRES(mutex_) {
    return peers_[static_cast<size_t>(rank)];
  }
  void check_rank(int rank) const {
    HOLDFAST_CHECK(rank >= 0 && rank < size_, "rank {} of {}", rank, size_);
  }
  // Why a call that needs the peer cannot be made.
  Result<void> check_alive(int peer) HOLDFAST_REQUIRES(mutex_);
  std::string missing() HOLDFAST_REQUIRES(mutex_);

  const int rank_;
  const int size_;
  Env& env_;
  const int64_t queue_;
  const int64_t most_bytes_;
  Mutex mutex_;
  Condition changed_;
  Inbox inbox_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ HOLDFAST_GUARDED_BY(mutex_);
  bool closed_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::unique_ptr<TcpLoop> loop_;  // last: its thread uses all of the above
};

Result<void> TcpTransport::Office::connect(const std::vector<SocketAddress>& addresses,
                                           Instant deadline) {
  for (int to = 0; to < rank_; ++to) {
    loop_->dial(to, addresses[static_cast<size_t>(to)]);
  }
  MutexLock lock(mutex_);
  while (true) {
    const std::string left = missing();
    if (left.empty()) return {};
    for (int peer = 0; peer < size_; ++peer) HOLDFAST_TRY(check_alive(peer));
    if (env_.now() >= deadline) {
      return timed_out("rank {}: not connected to {}", rank_, left);
    }
    env_.wait_until(changed_, mutex_, deadline);
  }
}

// The ranks that are not up yet, some of them by number.
std::string TcpTransport::Office::missing() {
  constexpr int kNamed = 5;
  std::string text;
  int count = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (at(peer).up) continue;
    if (++count <= kNamed) text += fmt::format("{}{}", count == 1 ? "" : ", ", peer);
  }
  if (count == 0) return "";
  return fmt::format("{} of {} ranks: {}{}", count, size_, text,
                     count > kNamed ? ", ..." : "");
}

void TcpTransport::Office::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  loop_->stop();
}

Result<void> TcpTransport::Office::check_alive(int peer) {
  if (closed_) return unavailable("rank {}: closed", rank_);
  if (at(peer).gone.has_value()) {
    return unavailable("rank {}: rank {} is gone: {}", rank_, peer, *at(peer).gone);
  }
  return {};
}

Result<void> TcpTransport::Office::send(int to, int64_t tag,
                                        const std::shared_ptr<const Bytes>& bytes,
                                        Instant deadline) {
  check_rank(to);
  if (bytes->size() > static_cast<size_t>(most_bytes_)) {
    return invalid("rank {}: message of {} bytes, limit {}", rank_, bytes->size(),
                   most_bytes_);
  }
  const bool own = tag >= 0;  // collective calls wait for each other: no queue needed
  MutexLock lock(mutex_);
  HOLDFAST_TRY(check_alive(to));
  while (!at(to).up || (own && at(to).unreceived >= queue_)) {
    if (env_.now() >= deadline) {
      if (!at(to).up) return timed_out("rank {}: not connected to {}", rank_, to);
      return timed_out("rank {}: send to rank {}, tag {}: queue of {} is full", rank_,
                       to, tag, queue_);
    }
    env_.wait_until(changed_, mutex_, deadline);
    HOLDFAST_TRY(check_alive(to));
  }
  if (own) ++at(to).unreceived;
  if (to == rank_) {
    inbox_.put(to, tag, *bytes);
    changed_.notify_all();
  } else {
    loop_->send(to, encode_frame(FrameKind::kMessage, tag, bytes));
  }
  return {};
}

Result<Bytes> TcpTransport::Office::recv(int from, int64_t tag, Instant deadline) {
  check_rank(from);
  MutexLock lock(mutex_);
  while (!inbox_.has(from, tag)) {
    HOLDFAST_TRY(check_alive(from));
    if (env_.now() >= deadline) {
      return timed_out("rank {}: nothing from rank {}, tag {}", rank_, from, tag);
    }
    env_.wait_until(changed_, mutex_, deadline);
  }
  if (closed_) return unavailable("rank {}: closed", rank_);
  if (tag >= 0 && from == rank_) {
    --at(from).unreceived;
    changed_.notify_all();
  } else if (tag >= 0) {
    loop_->send(from, encode_frame(FrameKind::kReceived, 1));
  }
  return inbox_.take(from, tag);
}

Result<std::vector<Bytes>> TcpTransport::Office::gather(const Transport& self,
                                                        ByteView bytes,
                                                        Instant deadline) {
  const int64_t tag = [&] {
    MutexLock lock(mutex_);
    return inbox_.begin_collective();
  }();
  const auto mine = std::make_shared<const Bytes>(copy_of(bytes));
  return gather_from_all(
      env_, self, deadline, [&](int to) { return send(to, tag, mine, deadline); },
      [&](int from, Instant until) { return recv(from, tag, until); });
}

void TcpTransport::Office::on_up(int rank) {
  MutexLock lock(mutex_);
  at(rank).up = true;
  changed_.notify_all();
}

Result<void> TcpTransport::Office::on_frame(int rank, Frame frame) {
  MutexLock lock(mutex_);
  if (frame.kind == FrameKind::kMessage) {
    if (frame.number >= 0 && inbox_.waiting(rank) >= queue_) {
      return invalid("more than {} messages at once", queue_);
    }
    inbox_.put(rank, frame.number, std::move(frame.bytes));
  } else {
    int64_t& unreceived = at(rank).unreceived;
    if (frame.number <= 0 || frame.number > unreceived) {
      return invalid("{} messages received of {}", frame.number, unreceived);
    }
    unreceived -= frame.number;
  }
  changed_.notify_all();
  return {};
}

void TcpTransport::Office::on_gone(int rank, const std::string& why) {
  MutexLock lock(mutex_);
  at(rank).gone = why;
  changed_.notify_all();
}

TcpTransport::TcpTransport(std::unique_ptr<Office> office)
    : office_(std::move(office)) {}

Result<std::unique_ptr<TcpTransport>> TcpTransport::listen(Env& env, int rank, int size,
                                                           const TcpOptions& options) {
  HOLDFAST_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  HOLDFAST_CHECK(options.queue > 0, "a queue without room");
  auto office = std::make_unique<Office>(env, rank, size, options);
  office->set_loop(HOLDFAST_TRY(TcpLoop::start(rank, size, options, *office)));
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(office)));
}

TcpTransport::~TcpTransport() { close(); }

const std::string& TcpTransport::address() const { return office_->loop().address(); }

Result<void> TcpTransport::connect(const std::vector<std::string>& addresses,
                                   Instant deadline) {
  if (addresses.size() != static_cast<size_t>(size())) {
    return invalid("connect: {} addresses for {} ranks", addresses.size(), size());
  }
  std::vector<SocketAddress> parsed;
  for (const std::string& address : addresses) {
    parsed.push_back(HOLDFAST_TRY(parse_address(address)));
  }
  return office_->connect(parsed, deadline).within("connect");
}

void TcpTransport::close() { office_->close(); }
void TcpTransport::close_in_child() { office_->loop().close_in_child(); }

int TcpTransport::rank() const { return office_->rank(); }
int TcpTransport::size() const { return office_->size(); }

Result<void> TcpTransport::send(int to, Tag tag, ByteView bytes, Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  const auto message = std::make_shared<const Bytes>(copy_of(bytes));
  return office_->send(to, tag, message, deadline);
}

Result<Bytes> TcpTransport::recv(int from, Tag tag, Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  return office_->recv(from, tag, deadline);
}

Result<void> TcpTransport::barrier(Instant deadline) {
  HOLDFAST_TRY(office_->gather(*this, {}, deadline).within("barrier"));
  return {};
}

Result<std::vector<Bytes>> TcpTransport::all_gather(ByteView bytes, Instant deadline) {
  return office_->gather(*this, bytes, deadline).within("all_gather");
}

}  // namespace holdfast
