// The messages of one rank, for transports whose ranks are processes: what waits to be
// received, how much is on its way to each other rank, and which ranks are gone. A
// FrameLoop brings the messages over.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/transport/frame_loop.h"
#include "holdfast/transport/transport_internal.h"

namespace holdfast {

struct MailboxLimits {
  QueueLimit queue{};      // on its way to one rank with one tag before send() waits
  int64_t most_bytes = 0;  // of a message
};

// Here arrived messages wait for their receivers, and callers wait for messages. The
// loop delivers what arrives. Locks: a thread that holds this mutex may take the loop's
// mutex, but never the other way round.
class Mailbox : public FrameEvents {
 public:
  Mailbox(Env& env, int rank, int size, const MailboxLimits& limits)
      : rank_(rank),
        size_(size),
        env_(env),
        queue_(limits.queue),
        most_bytes_(limits.most_bytes),
        inbox_(size),
        peers_(static_cast<size_t>(size)) {
    HOLDFAST_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
    HOLDFAST_CHECK(queue_.messages > 0, "a queue without room");
    MutexLock lock(mutex_);
    at(rank).up = true;
  }

  // Called once, before all other calls.
  void set_loop(std::unique_ptr<FrameLoop> loop) { loop_ = std::move(loop); }

  // Returns when all ranks are up. kUnavailable if one of them is gone.
  Result<void> wait_until_connected(Instant deadline);
  // Calls that wait give kUnavailable from now on. Stops the loop.
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
    QueueLoads unreceived{};            // messages to it that it has not received yet
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
  // Tells another rank that its oldest message of this tag was received.
  void confirm(int from, int64_t tag);
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
  std::unique_ptr<FrameLoop> loop_;  // the last member: its thread uses those above
};

}  // namespace holdfast
