// What the transports have in common: the messages that have arrived at a rank, and
// collective calls made of messages. Nothing here locks: the callers do.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "holdfast/transport/late_ranks.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// How much one rank may send to another with one tag before the other has received it.
struct QueueLimit {
  int64_t messages = 0;
  int64_t bytes = 0;
};

// The messages between two ranks that were not received yet. Each tag has a queue of its
// own, because its receiver may come late: a long message must not keep those of another
// tag back, for which the same receiver may wait first.
class QueueLoads {
 public:
  void add(int64_t tag, size_t message) {
    Load& load = loads_[tag];
    load.messages.push_back(static_cast<int64_t>(message));
    load.bytes += static_cast<int64_t>(message);
  }
  // Removes the oldest message of the tag. False if there is none.
  bool remove(int64_t tag) {
    const auto found = loads_.find(tag);
    if (found == loads_.end()) return false;
    Load& load = found->second;
    load.bytes -= load.messages.front();
    load.messages.pop_front();
    if (load.messages.empty()) loads_.erase(found);
    return true;
  }
  // True if one more message fits. A message longer than the limit fits alone.
  bool has_room(int64_t tag, size_t message, const QueueLimit& limit) const {
    const auto found = loads_.find(tag);
    if (found == loads_.end()) return true;
    const Load& load = found->second;
    return std::ssize(load.messages) < limit.messages &&
           load.bytes + static_cast<int64_t>(message) <= limit.bytes;
  }

 private:
  struct Load {
    std::deque<int64_t> messages{};  // their lengths, the oldest first
    int64_t bytes = 0;
  };
  std::map<int64_t, Load> loads_;  // by tag; none is empty
};

// Messages that have arrived and that nobody has received yet. Tags >= 0 belong to
// callers of send(); collective call number n has the tag -n.
class Inbox {
 public:
  explicit Inbox(int size) : waiting_(static_cast<size_t>(size)) {}

  void put(int from, int64_t tag, Bytes message) {
    if (tag >= 0) waiting(from).add(tag, message.size());
    messages_[{from, tag}].push_back(std::move(message));
  }
  bool has(int from, int64_t tag) const { return messages_.contains({from, tag}); }
  // Removes and returns the oldest message, which must exist.
  Bytes take_message(int from, int64_t tag) {
    const auto channel = messages_.find({from, tag});
    Bytes message = std::move(channel->second.front());
    channel->second.pop_front();
    if (channel->second.empty()) messages_.erase(channel);
    if (tag >= 0) waiting(from).remove(tag);
    return message;
  }
  // The messages of that rank that wait, without those of collective calls.
  QueueLoads& waiting(int from) { return waiting_[static_cast<size_t>(from)]; }

  // The tag of this rank's next collective call. Removes messages that failed
  // collective calls left behind.
  int64_t begin_collective() {
    const int64_t tag = -(++collectives_);
    std::erase_if(messages_, [&](const auto& entry) {
      const int64_t old = entry.first.second;
      return old < 0 && old > tag;
    });
    return tag;
  }

 private:
  std::map<std::pair<int, int64_t>, std::deque<Bytes>> messages_;  // by sender and tag
  std::vector<QueueLoads> waiting_;                                // by sender
  int64_t collectives_ = 0;
};

// Makes a collective call: `send(to)` sends this rank's part to each rank, also to
// itself, and `recv(from, deadline)` receives the part of each rank. A kTimeout names
// all ranks whose part did not arrive.
template <typename Send, typename Recv>
Result<std::vector<Bytes>> gather_from_all(Env& env, const Transport& self,
                                           Instant deadline, const Send& send,
                                           const Recv& recv) {
  const int size = self.size();
  // A rank that is gone is no failure yet: if its part arrived before it ended, the
  // call is complete for this rank. If its part did not arrive, receiving fails below.
  for (int to = 0; to < size; ++to) {
    const Result<void> sent = send(to);
    if (!sent.ok() && sent.error().code() != ErrorCode::kUnavailable) {
      return sent.error();
    }
  }
  std::vector<Bytes> all(static_cast<size_t>(size));
  std::vector<int> ranks, missing;
  for (int from = 0; from < size; ++from) ranks.push_back(from);
  std::optional<Error> gone;
  const auto keep = [&](int from, Result<Bytes> part) {
    if (part.ok()) {
      all[static_cast<size_t>(from)] = *std::move(part);
    } else if (part.error().code() == ErrorCode::kTimeout) {
      missing.push_back(from);
    } else if (!gone.has_value()) {
      gone = part.error();
    }
  };
  const auto unless_gone = [&](int from, Instant until) {
    return gone.has_value() ? Result<Bytes>(*gone) : recv(from, until);
  };
  receive_from(env, self.late_watch(), std::move(ranks), deadline, unless_gone, keep);
  if (gone.has_value()) return *gone;
  if (missing.empty()) return all;
  return timed_out("rank {}: nothing from {}; expected the same calls on all ranks",
                   self.rank(), name_ranks(missing));
}

}  // namespace holdfast
