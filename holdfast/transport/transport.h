// Transport: messages between the ranks of a job, each call with a deadline. It is for
// agreeing, voting and handing out plans. The bytes of tensors go in messages of a
// megabyte or so, by send_in_place() and recv_into().
//
// Messages of one sender, receiver and tag arrive in order, or not at all. Failures:
//
//   kTimeout      the deadline passed. A message may still arrive later. A collective
//                 call has failed for this rank, but other ranks may have finished it.
//   kUnavailable  the peer is known to be gone, or this rank itself is cut off.
//                 Messages that the peer sent before are received first.
//
// All ranks make collective calls (barrier, all_gather) in the same order; a failed
// call counts as made. Ranks and tags out of range are bugs and abort. Threads: calls
// may come from several threads, collective calls from one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/result.h"
#include "holdfast/env/env.h"

namespace holdfast {

// Tells messages between the same two ranks apart. Chosen by the caller, >= 0.
using Tag = int32_t;

// How many bytes may be on their way from one rank to another with one tag before send()
// waits, unless the transport's options say otherwise.
inline constexpr int64_t kQueueBytes = int64_t{16} << 20;

// Every wait that takes longer than `after` calls `tell` once with the ranks that it
// still waits for, and then waits on. The thread that waits makes the call.
struct LateRanks {
  Duration after{};
  std::function<void(const std::vector<int>& missing)> tell{};
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Sets what is called when ranks are late for a collective call or a message. Must be
  // called by the thread that makes those calls.
  void set_late_watch(LateRanks watch) { late_watch_ = std::move(watch); }
  const LateRanks& late_watch() const { return late_watch_; }

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Returns when the bytes may be changed again, which does not mean that they arrived.
  // A rank may send to itself.
  virtual Result<void> send(int to, Tag tag, ByteView bytes, Instant deadline) = 0;
  // The same, for many bytes: the transport sends them from where they are, if it can,
  // instead of copying them first.
  virtual Result<void> send_in_place(int to, Tag tag, ByteView bytes,
                                     Instant deadline) {
    return send(to, tag, bytes, deadline);
  }
  // The next message from that rank with that tag.
  virtual Result<Bytes> recv(int from, Tag tag, Instant deadline) = 0;
  // Receives the message into this memory, and returns its length. kInvalid if the
  // message is longer; it is then lost. After a failure the memory has any contents.
  virtual Result<size_t> recv_into(int from, Tag tag, ByteSpan into, Instant deadline) {
    const Bytes message = HOLDFAST_TRY(recv(from, tag, deadline));
    if (message.size() > into.size()) {
      return invalid("rank {}: message of {} bytes from rank {}; expected at most {}",
                     rank(), message.size(), from, into.size());
    }
    std::copy(message.begin(), message.end(), into.begin());
    return message.size();
  }
  // Returns when all ranks have called it.
  virtual Result<void> barrier(Instant deadline) = 0;
  // Returns the bytes that every rank passed, by rank. Lengths may differ.
  virtual Result<std::vector<Bytes>> all_gather(ByteView bytes, Instant deadline) = 0;

 private:
  LateRanks late_watch_;
};

}  // namespace holdfast
