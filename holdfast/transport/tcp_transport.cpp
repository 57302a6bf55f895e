#include "holdfast/transport/tcp_transport.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "holdfast/transport/tcp_loop_internal.h"
#include "holdfast/transport/transport_internal.h"

namespace holdfast {

// Here arrived messages wait for their receivers, and callers wait for messages. The
// loop delivers what arrives. Locks: a thread that holds this mutex may take the loop's
// mutex, but never the other way round.
class TcpTransport::Mailbox : public TcpEvents {
 public:
  Mailbox(Env& env, int rank, int size, const TcpOptions& options)
      : rank_(rank),
        size_(size),
        env_(env),
        queue_{static_cast<int64_t>(options.queue), options.queue_bytes},
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
  Result<void> send_in_place(int to, int64_t tag, ByteView bytes, Instant deadline);
  Result<Bytes> recv(int from, int64_t tag, Instant deadline);
  // Waits until the next message is in `into`, and returns its length; or nullopt if it
  // has arrived elsewhere and waits to be received.
  Result<std::optional<size_t>> land(int from, int64_t tag, ByteSpan into,
                                     Instant deadline);
  Result<std::vector<Bytes>> gather(const Transport& self, ByteView bytes,
                                    Instant deadline);

  void on_up(int rank) override;
  Result<void> on_frame(int rank, Frame frame) override;
  std::shared_ptr<Landing> find_landing(int rank, int64_t tag, size_t length) override;
  void on_gone(int rank, const std::string& why) override;

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  struct Peer {
    bool up = false;
    std::optional<std::string> gone{};  // the reason, if the peer is gone
    QueueLoad unreceived{};             // messages to it that it has not received yet
  };

  Peer& at(int rank) HOLDFAST_REQUIRES(mutex_) {
    return peers_[static_cast<size_t>(rank)];
  }
  void check_rank(int rank) const {
    HOLDFAST_CHECK(rank >= 0 && rank < size_, "rank {} of {}", rank, size_);
  }
  // Fails with the reason why a call that needs the peer cannot be made.
  Result<void> check_alive(int peer) HOLDFAST_REQUIRES(mutex_);
  std::string missing() HOLDFAST_REQUIRES(mutex_);
  // Waits until a message is there or has landed.
  Result<void> wait_for_message(int from, int64_t tag, Landing* landing,
                                Instant deadline) HOLDFAST_REQUIRES(mutex_);
  // Counts a message of another rank as received, and tells that rank.
  void confirm(int from, size_t size);
  // Waits until a message of this size may be sent, and counts it.
  Result<void> wait_for_room(int to, int64_t tag, size_t size, Instant deadline)
      HOLDFAST_REQUIRES(mutex_);

  const int rank_;
  const int size_;
  Env& env_;
  const QueueLimit queue_;
  const int64_t most_bytes_;
  Mutex mutex_;
  Condition changed_;
  Inbox inbox_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ HOLDFAST_GUARDED_BY(mutex_);
  // The memory into which waiting receivers want their next message, by sender and tag.
  std::map<std::pair<int, int64_t>, std::shared_ptr<Landing>> landings_
      HOLDFAST_GUARDED_BY(mutex_);
  bool closed_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::unique_ptr<TcpLoop> loop_;  // the last member: its thread uses those above
};

Result<void> TcpTransport::Mailbox::connect(const std::vector<SocketAddress>& addresses,
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

// Says which ranks are not connected yet: their count, and the numbers of the first
// five. Empty if all are connected.
std::string TcpTransport::Mailbox::missing() {
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

void TcpTransport::Mailbox::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  loop_->stop();
}

Result<void> TcpTransport::Mailbox::check_alive(int peer) {
  if (closed_) return unavailable("rank {}: the transport is closed", rank_);
  if (at(peer).gone.has_value()) {
    return unavailable("rank {}: rank {} is gone: {}", rank_, peer, *at(peer).gone);
  }
  return {};
}

Result<void> TcpTransport::Mailbox::wait_for_room(int to, int64_t tag, size_t size,
                                                  Instant deadline) {
  check_rank(to);
  if (size > static_cast<size_t>(most_bytes_)) {
    return invalid("rank {}: message of {} bytes, limit {}", rank_, size, most_bytes_);
  }
  // Messages of collective calls have no limit: those calls wait for each other anyway.
  const bool own = tag >= 0;
  HOLDFAST_TRY(check_alive(to));
  while (!at(to).up || (own && !at(to).unreceived.has_room(size, queue_))) {
    if (env_.now() >= deadline) {
      if (!at(to).up) return timed_out("rank {}: not connected to rank {}", rank_, to);
      return timed_out("rank {}: send to rank {}, tag {}: queue of {} is full", rank_,
                       to, tag, queue_.messages);
    }
    env_.wait_until(changed_, mutex_, deadline);
    HOLDFAST_TRY(check_alive(to));
  }
  if (own) at(to).unreceived.add(size);
  return {};
}

Result<void> TcpTransport::Mailbox::send(int to, int64_t tag,
                                         const std::shared_ptr<const Bytes>& bytes,
                                         Instant deadline) {
  MutexLock lock(mutex_);
  HOLDFAST_TRY(wait_for_room(to, tag, bytes->size(), deadline));
  if (to == rank_) {
    inbox_.put(to, tag, *bytes);
    changed_.notify_all();
  } else {
    loop_->send(to, encode_frame(FrameKind::kMessage, tag, bytes));
  }
  return {};
}

Result<void> TcpTransport::Mailbox::send_in_place(int to, int64_t tag, ByteView bytes,
                                                  Instant deadline) {
  if (to == rank_) {
    return send(to, tag, std::make_shared<const Bytes>(copy_of(bytes)), deadline);
  }
  const auto lent = std::make_shared<LentBytes>(bytes);
  {
    MutexLock lock(mutex_);
    HOLDFAST_TRY(wait_for_room(to, tag, bytes.size(), deadline));
    loop_->send(to, lend_message(tag, lent));
  }
  if (lent->wait(env_, deadline)) return {};
  return timed_out("rank {}: send to rank {}, tag {}: {} bytes were not sent in time",
                   rank_, to, tag, bytes.size());
}

Result<void> TcpTransport::Mailbox::wait_for_message(int from, int64_t tag,
                                                     Landing* landing,
                                                     Instant deadline) {
  while (!inbox_.has(from, tag)) {
    if (landing != nullptr && landing->landed().has_value()) return {};
    HOLDFAST_TRY(check_alive(from));
    if (env_.now() >= deadline) {
      return timed_out("rank {}: no message of tag {} from rank {} in time", rank_, tag,
                       from);
    }
    env_.wait_until(changed_, mutex_, deadline);
  }
  if (closed_) return unavailable("rank {}: the transport is closed", rank_);
  return {};
}

void TcpTransport::Mailbox::confirm(int from, size_t size) {
  loop_->send(from, encode_frame(FrameKind::kReceived, static_cast<int64_t>(size)));
}

Result<std::optional<size_t>> TcpTransport::Mailbox::land(int from, int64_t tag,
                                                          ByteSpan into,
                                                          Instant deadline) {
  check_rank(from);
  const auto landing = std::make_shared<Landing>(into);
  MutexLock lock(mutex_);
  if (from != rank_) landings_.try_emplace({from, tag}, landing);
  const Result<void> arrived = wait_for_message(from, tag, landing.get(), deadline);
  std::erase_if(landings_, [&](const auto& one) { return one.second == landing; });
  const std::optional<size_t> size = landing->landed();
  if (size.has_value()) return size;
  landing->leave();
  if (!arrived.ok()) return arrived.error();
  return std::optional<size_t>();
}

Result<Bytes> TcpTransport::Mailbox::recv(int from, int64_t tag, Instant deadline) {
  check_rank(from);
  MutexLock lock(mutex_);
  HOLDFAST_TRY(wait_for_message(from, tag, nullptr, deadline));
  Bytes message = inbox_.take_message(from, tag);
  if (tag >= 0 && from == rank_) {
    at(from).unreceived.remove(message.size());
    changed_.notify_all();
  } else if (tag >= 0) {
    confirm(from, message.size());
  }
  return message;
}

Result<std::vector<Bytes>> TcpTransport::Mailbox::gather(const Transport& self,
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

void TcpTransport::Mailbox::on_up(int rank) {
  MutexLock lock(mutex_);
  at(rank).up = true;
  changed_.notify_all();
}

Result<void> TcpTransport::Mailbox::on_frame(int rank, Frame frame) {
  MutexLock lock(mutex_);
  if (frame.kind == FrameKind::kMessage && frame.landing != nullptr) {
    std::optional<Bytes> elsewhere = frame.landing->finish();
    if (!elsewhere.has_value()) {
      confirm(rank, *frame.landing->landed());
      changed_.notify_all();
      return {};
    }
    frame.bytes = *std::move(elsewhere);
  }
  if (frame.kind == FrameKind::kMessage) {
    // A receiver that waits takes this message, so that the next must not land there.
    landings_.erase({rank, frame.number});
    if (frame.number >= 0 &&
        !inbox_.waiting(rank).has_room(frame.bytes.size(), queue_)) {
      return invalid("more than {} messages or {} bytes wait to be received",
                     queue_.messages, queue_.bytes);
    }
    inbox_.put(rank, frame.number, std::move(frame.bytes));
  } else {
    QueueLoad& unreceived = at(rank).unreceived;
    if (frame.number < 0 || frame.number > unreceived.bytes ||
        unreceived.messages == 0) {
      return invalid("a message of {} bytes confirmed, but {} of {} were on their way",
                     frame.number, unreceived.messages, unreceived.bytes);
    }
    unreceived.remove(static_cast<size_t>(frame.number));
  }
  changed_.notify_all();
  return {};
}

std::shared_ptr<Landing> TcpTransport::Mailbox::find_landing(int rank, int64_t tag,
                                                             size_t length) {
  MutexLock lock(mutex_);
  const auto found = landings_.find({rank, tag});
  if (found == landings_.end() || found->second->most() < length) return nullptr;
  if (inbox_.has(rank, tag)) return nullptr;  // an older message comes first
  std::shared_ptr<Landing> landing = std::move(found->second);
  landings_.erase(found);
  return landing;
}

void TcpTransport::Mailbox::on_gone(int rank, const std::string& why) {
  MutexLock lock(mutex_);
  at(rank).gone = why;
  changed_.notify_all();
}

TcpTransport::TcpTransport(std::unique_ptr<Mailbox> mailbox)
    : mailbox_(std::move(mailbox)) {}

Result<std::unique_ptr<TcpTransport>> TcpTransport::listen(Env& env, int rank, int size,
                                                           const TcpOptions& options) {
  HOLDFAST_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  HOLDFAST_CHECK(options.queue > 0, "a queue without room");
  auto mailbox = std::make_unique<Mailbox>(env, rank, size, options);
  mailbox->set_loop(HOLDFAST_TRY(TcpLoop::start(rank, size, options, *mailbox)));
  return std::unique_ptr<TcpTransport>(new TcpTransport(std::move(mailbox)));
}

TcpTransport::~TcpTransport() { close(); }

const std::string& TcpTransport::address() const { return mailbox_->loop().address(); }

Result<void> TcpTransport::connect(const std::vector<std::string>& addresses,
                                   Instant deadline) {
  if (addresses.size() != static_cast<size_t>(size())) {
    return invalid("connect: {} addresses; expected one for each of {} ranks",
                   addresses.size(), size());
  }
  std::vector<SocketAddress> parsed;
  for (const std::string& address : addresses) {
    parsed.push_back(HOLDFAST_TRY(parse_address(address)));
  }
  return mailbox_->connect(parsed, deadline).within("connect");
}

void TcpTransport::close() { mailbox_->close(); }
void TcpTransport::close_in_child() { mailbox_->loop().close_in_child(); }

int TcpTransport::rank() const { return mailbox_->rank(); }
int TcpTransport::size() const { return mailbox_->size(); }

Result<void> TcpTransport::send(int to, Tag tag, ByteView bytes, Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  const auto message = std::make_shared<const Bytes>(copy_of(bytes));
  return mailbox_->send(to, tag, message, deadline);
}

Result<void> TcpTransport::send_in_place(int to, Tag tag, ByteView bytes,
                                         Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  return mailbox_->send_in_place(to, tag, bytes, deadline);
}

Result<Bytes> TcpTransport::recv(int from, Tag tag, Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  return mailbox_->recv(from, tag, deadline);
}

Result<size_t> TcpTransport::recv_into(int from, Tag tag, ByteSpan into,
                                       Instant deadline) {
  HOLDFAST_CHECK(tag >= 0, "tag {}", tag);
  const std::optional<size_t> size =
      HOLDFAST_TRY(mailbox_->land(from, tag, into, deadline));
  if (size.has_value()) return *size;
  return Transport::recv_into(from, tag, into, deadline);
}

Result<void> TcpTransport::barrier(Instant deadline) {
  HOLDFAST_TRY(mailbox_->gather(*this, {}, deadline).within("barrier"));
  return {};
}

Result<std::vector<Bytes>> TcpTransport::all_gather(ByteView bytes, Instant deadline) {
  return mailbox_->gather(*this, bytes, deadline).within("all_gather");
}

}  // namespace holdfast
