// What the ranks of a job say to each other about checkpoints: small messages over a
// Transport, between rank 0 (the coordinator) and the others.
//
// Each message carries the serial number of the save (or restore, or call) that it is
// about. A rank that gave up waiting goes on to the next serial and may then receive
// late messages about the old one: the channel skips them. A message about a later
// serial is kept until that serial is asked for. The channel uses only send and recv,
// with its own tags, so a background thread never interferes with the collective calls
// of the training thread.
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
  std::string kind{};  // what the message says: "go", "skip", "vote", "outcome", ...
  uint64_t attempt = 0;
  std::vector<ManifestFile> files{};
  std::string text{};  // depends on the kind, e.g. a step's folder or digests
  // Why the sender failed, or the error that all ranks shall return.
  std::optional<Error> error{};
  friend bool operator==(const Message&, const Message&);
};

Bytes encode_message(const Message& message);
// kCorrupt for bytes that are no message, for instance from a rank with another
// version.
Result<Message> decode_message(ByteView bytes);

// One kind of conversation between the ranks. Used by one thread at a time. Without a
// transport the job has one rank.
class Channel {
 public:
  // The channel uses the tags `tag` and `tag + 1`. `transport` may be null. With
  // `watched`, the transport's late watch names the ranks that this channel waits for.
  Channel(Env& env, Transport* transport, Tag tag, bool watched = false)
      : env_(env), transport_(transport), tag_(tag), watched_(watched) {}

  int rank() const { return transport_ == nullptr ? 0 : transport_->rank(); }
  int size() const { return transport_ == nullptr ? 1 : transport_->size(); }
  bool coordinator() const { return rank() == 0; }

  // Sends a message from rank 0 to all others. Tries all ranks, then returns the first
  // failure.
  Result<void> tell_all(const Message& message, Duration at_most);
  // Receives what rank 0 said about `serial`. kUnavailable if rank 0 has gone on to a
  // later serial.
  Result<Message> hear(int64_t serial, Duration at_most);

  // Sends a message to rank 0.
  Result<void> report(const Message& message, Duration at_most);
  // Called on rank 0: returns what all ranks reported about the serial of `own`, by
  // rank. The entry of rank 0 is `own`. The entry of a rank that did not report in time
  // has an error, which names all such ranks.
  std::vector<Message> collect(Message own, Duration at_most);

  // All ranks say whether they succeeded; if any failed, all return the error of the
  // lowest such rank. agree() numbers its calls itself, so after the first call the
  // channel must be used for nothing else. A rank that gave up waiting for rank 0
  // receives the answer in its next call.
  Result<void> agree(const Result<void>& own, Duration at_most);

  // Numbers the calls of agree() from the start again and forgets early messages. For a
  // conversation with a new set of processes, over a transport that has no messages of
  // the old one.
  void reset() {
    early_.clear();
    agreed_ = 0;
    reported_ = false;
  }

 private:
  Result<Message> receive(int from, Tag tag, int64_t serial, Instant deadline);
  // Receives one message from each of the ranks, and tells the late watch whom it waits
  // for.
  std::vector<Result<Message>> receive_all(std::vector<int> ranks, Tag tag,
                                           int64_t serial, Duration at_most);

  Env& env_;
  Transport* transport_;
  Tag tag_;
  bool watched_;
  // Messages about a later serial, by sender and tag.
  std::map<std::pair<int, Tag>, Message> early_;
  int64_t agreed_ = 0;     // calls of agree() that have had an answer
  bool reported_ = false;  // the call of agree() without an answer has sent its report
};

}  // namespace holdfast
