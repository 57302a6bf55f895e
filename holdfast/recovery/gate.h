// The gate: before a rank writes to the first tensor of an update, all ranks have said
// that they can make this update too. After the death of a rank the survivors can
// therefore always continue (decide.h), and nothing has to be undone.
//
// Every rank counts its updates: 1, 2, ... It passes the gate once for each update, when
// the reductions of the update are complete and no tensor is written yet:
//
//   1. It sends its record to its buddy: the few bytes that no other rank has, such as
//      its random generators and its position in the data. It waits for the record of
//      its peer, the rank whose buddy it is. Now it is *ready*.
//   2. In round k = 0, 1, ... it tells the rank 2^k places above it that it is ready, and
//      waits for the same word of the rank 2^k places below it. A rank sends in a round
//      only what it has heard in all rounds before, so after log2(ranks) rounds it has
//      heard, directly or not, that all ranks are ready. Now it is *committed* and may
//      write to its tensors.
//
// Messages carry the generation and the update. The generation counts the sets of
// processes: 0 at first, and one more each time that lost ranks were replaced. Messages
// of older generations are ignored.
//
// When a rank was lost, interrupt() ends the gate of this generation. From then on
// committed() and ready() do not change, so they are what the coordinator decides by. A
// rank that is told to go forward calls forward(). When the replacements are there and
// filled, all ranks call begin() with the next generation.
//
// Threads: interrupt(), record_of_peer() and the functions that only look may be called
// from any thread at any time, all others from the training thread.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// The record of the peer after one of its updates.
struct KeptRecord {
  int64_t update = 0;
  Bytes bytes{};
  // False if the record was made at the gate, before the update, or if the peer has made
  // a later one for which there was no room. What the peer changed after that is then
  // missing.
  bool refreshed = false;
};

class Gate {
 public:
  // Both must outlive the gate. `hosts` has a number for the host of each rank, by rank;
  // it may be empty if all ranks are on one host (buddies.h). The gate begins in
  // generation 0 after update 0.
  Gate(Env& env, Transport& transport, std::vector<int> hosts = {});

  // Begins a generation, on all ranks together: the transport connects the new set of
  // processes, and every rank has the state after `update` updates. Sends this rank's
  // record, in case that its buddy was replaced, and returns when all ranks hold the
  // record of their peer. The generation must be greater than the last one. Not needed
  // in generation 0, where it has the advantage that records are there before the first
  // update. Fails as pass() does.
  Result<void> begin(int64_t generation, int64_t update, ByteView record,
                     Instant deadline);

  // Passes the gate of an update, which must be committed() + 1. Ok means that this rank
  // is committed to the update, and an error that it is not, whatever other ranks are.
  // kUnavailable if a rank is gone or after interrupt(), kTimeout at the deadline, and
  // kInvalid if another rank is at another update. After an error all calls fail until
  // begin(). In a job of one rank there is nobody to wait for.
  Result<void> pass(int64_t update, ByteView record, Instant deadline);

  // Sends the record again after the update, because it has changed since pass(). The
  // update must be committed(). Does not wait: kTimeout if there is no room for the
  // record, because the buddy has not received the last one yet. The buddy is then told
  // that the record that it has is not the newest.
  Result<void> refresh(int64_t update, ByteView record);

  // Makes this rank committed to the update without the others, because the coordinator
  // has decided so. kInvalid unless this rank is ready for it.
  Result<void> forward(int64_t update);

  // Ends the gates of all generations up to this one; without a number, up to the
  // current one. A pass() that waits returns kUnavailable within 20 ms.
  void interrupt(std::optional<int64_t> generation = std::nullopt);

  // The newest record that the peer has sent after this update, or nullopt if there is
  // none. Kept are those of the last two updates that this rank was committed to, and
  // newer ones. Until the deadline it waits for more: it returns earlier only if the
  // transport says that the peer is gone, because then all that the peer sent has
  // arrived. Call it before the transport is closed, which loses what was not received.
  std::optional<KeptRecord> record_of_peer(int64_t update,
                                           Instant deadline = Instant::min());

  int buddy() const { return buddy_; }  // the rank that keeps this rank's record
  int peer() const { return peer_; }    // the rank whose record this rank keeps
  int64_t generation() const;
  int64_t committed() const;  // the newest update that this rank is committed to
  int64_t ready() const;      // the newest update that this rank was ready for

 private:
  // What is in front of every message.
  struct Header {
    int64_t generation = 0;
    int64_t update = 0;
    int64_t serial = 0;  // grows with every record that the sender sends
    bool refreshed = false;
  };
  struct Kept {
    Header header{};
    Bytes bytes{};
  };

  static Bytes encode(const Header& header, ByteView record);
  static Result<Kept> decode(ByteView message, int from);

  Result<void> enter(int64_t update);
  // The conversation of begin() and pass(). Sets ready().
  Result<void> meet(int64_t update, ByteView record, bool refreshed, Instant deadline);
  Result<void> send(int to, Tag tag, ByteView message, Instant deadline);
  // Waits for a short time. Returns nullopt if no message came and there is time left.
  Result<std::optional<Kept>> receive(int from, Tag tag, Instant deadline);
  Result<void> await_record(int64_t update, Instant deadline);
  Result<void> await_word(int from, int64_t update, Instant deadline);
  // Keeps the records that the peer has sent, and those that it sends until the
  // deadline. Returns their headers.
  std::vector<Header> take_records(Instant deadline);
  // Takes in which records the peer could not send.
  void take_later();
  bool has_record(int64_t update) const;
  void keep(Kept record);
  Result<void> check_open() const;
  Result<void> check_open_locked() const HOLDFAST_REQUIRES(mutex_);
  Header header_for(int64_t update) const;

  Env& env_;
  Transport& transport_;
  int buddy_ = 0;
  int peer_ = 0;
  int64_t sent_ = 0;     // records that this rank has sent
  bool used_ = false;    // begin() or pass() was called
  bool failed_ = false;  // begin() or pass() has failed in this generation
  // The headers of records that came while this rank could not send. await_record()
  // looks at them before it waits for more.
  std::deque<Header> early_{};

  mutable Mutex mutex_;
  int64_t generation_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  int64_t committed_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  int64_t ready_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // The greatest generation that was interrupted.
  int64_t interrupted_ HOLDFAST_GUARDED_BY(mutex_) = -1;
  std::map<int64_t, Kept> kept_ HOLDFAST_GUARDED_BY(mutex_);  // by update
  // The newest record that the peer has made and could not send.
  Header later_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
