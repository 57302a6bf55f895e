// What the transports have in common: what has arrived at a rank, and collective calls
// made of messages. Nobody here locks.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "holdfast/base/transport.h"

namespace holdfast {

// Messages that nobody has received yet. Tags >= 0 are the callers'; collective call
// number n has tag -n.
class Inbox {
 public:
  explicit Inbox(int size) : waiting_(static_cast<size_t>(size)) {}

  void put(int from, int64_t tag, Bytes message) {
    messages_[{from, tag}].push_back(std::move(message));
    if (tag >= 0) ++waiting(from);
  }
  bool has(int from, int64_t tag) const { return messages_.contains({from, tag}); }
  // One that is there.
  Bytes take(int from, int64_t tag) {
    const auto channel = messages_.find({from, tag});
    Bytes message = std::move(channel->second.front());
    channel->second.pop_front();
    if (channel->second.empty()) messages_.erase(channel);
    if (tag >= 0) --waiting(from);
    return message;
  }
  // Callers' messages of that rank.
  int64_t& waiting(int from) { return waiting_[static_cast<size_t>(from)]; }

  // The tag of the rank's next collective call. What failed calls left behind goes.
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
  std::vector<int64_t> waiting_;                                   // by sender
  int64_t collectives_ = 0;
};

// A collective call: `send(to)` gives this rank's part to each rank, itself included, and
// `recv(from)` gives theirs.
template <typename Send, typename Recv>
Result<std::vector<Bytes>> gather_from_all(int size, const Send& send,
                                           const Recv& recv) {
  // To all that can hear it. One that cannot is missed when its own part is received:
  // if that came before it died, the call is whole for this rank.
  for (int to = 0; to < size; ++to) {
    const Result<void> sent = send(to);
    if (!sent.ok() && sent.error().code() != ErrorCode::kUnavailable) {
      return sent.error();
    }
  }
  std::vector<Bytes> all;
  for (int from = 0; from < size; ++from) all.push_back(HOLDFAST_TRY(recv(from)));
  return all;
}

}  // namespace holdfast
