// What the ranks of a job say to each other about checkpoints: small messages over a
// Transport, between rank 0 (the coordinator) and the others.
//
// Messages carry the serial number of what they are about. A rank that gave up waiting
// goes on to the next, and finds late messages of the old one in its way: they are
// skipped; an early one, of what is still to come, is kept for then. Only send and recv are
// used, with tags of their own, so a background thread never meets the collective calls of
// the training thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/env/env.h"
#include "holdfast/store/manifest.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

struct Message {
  int64_t serial = 0;
  std::string kind{};  // what is decided: "go", "skip", a step's folder, ...
  uint64_t attempt = 0;
  std::vector<ManifestFile> files{};
  std::string text{};            // anything more
  std::optional<Error> error{};  // the sender's, or what all shall raise
  friend bool operator==(const Message&, const Message&);
};

Bytes encode_message(const Message& message);
// kCorrupt for what is none: a peer of another version.
Result<Message> decode_message(ByteView bytes);

// One kind of conversation, of one thread at a time. Without a transport there is one rank,
// which is alone.
class Channel {
 public:
  // Two tags from `tag` on are its own. `transport` may be null. `watched`: its waits are
  // told to the transport's late watch.
  Channel(Env& env, Transport* transport, Tag tag, bool watched = false)
      : env_(env), transport_(transport), tag_(tag), watched_(watched) {}

  int rank() const { return transport_ == nullptr ? 0 : transport_->rank(); }
  int size() const { return transport_ == nullptr ? 1 : transport_->size(); }
  bool coordinator() const { return rank() == 0; }

  // From rank 0 to all others. Tries all; the first failure.
  Result<void> tell_all(const Message& message, Duration at_most);
  // What rank 0 said about `serial`. kUnavailable if it has gone on to a later one.
  Result<Message> hear(int64_t serial, Duration at_most);

  // To rank 0.
  Result<void> report(const Message& message, Duration at_most);
  // What all others reported about `serial`, by rank (rank 0's own entry is `own`);
  // a rank that did not report by then has an error in its message, which names all such
  // ranks.
  std::vector<Message> collect(Message own, Duration at_most);

  // All ranks say how they fared; the failure of the first that failed is everybody's. It
  // counts its calls, and is all that such a channel is used for from then on. A rank that
  // gave up waiting for rank 0 finds the answer with its next call.
  Result<void> agree(const Result<void>& own, Duration at_most);

 private:
  Result<Message> receive(int from, Tag tag, int64_t serial, Instant deadline);
  // From several, with the watch.
  std::vector<Result<Message>> receive_all(std::vector<int> ranks, Tag tag,
                                           int64_t serial, Duration at_most);

  Env& env_;
  Transport* transport_;
  Tag tag_;
  bool watched_;
  std::map<std::pair<int, Tag>, Message> early_;  // by sender and tag
  int64_t agreed_ = 0;                            // calls of agree() that had an answer
  bool reported_ = false;                         // in the one that has none yet
};

}  // namespace holdfast
