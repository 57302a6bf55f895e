// The two ends of a stream, each of which is the work of one thread. Internal to
// move_pieces.cpp.
#pragma once

#include <atomic>
#include <vector>

#include "holdfast/exchange/carrier.h"
#include "holdfast/exchange/exchange_progress.h"
#include "holdfast/exchange/own_moves.h"
#include "holdfast/exchange/storage.h"

namespace holdfast {

class MemoryCount;
struct MoveOptions;

// Counts the readers of the old pieces. With `windowed`, a piece is released after its
// last reader. Safe from all threads.
class OldPieces {
 public:
  // Besides the senders, the rank itself reads each piece until it says otherwise.
  OldPieces(const LocalPieces& old, const OwnMoves& moves, PieceStorage& storage,
            MemoryCount& memory, bool windowed);

  void finish_reader(uint32_t number);
  std::vector<bool> released() const;

 private:
  const LocalPieces& old_;
  PieceStorage& storage_;
  MemoryCount& memory_;
  const bool windowed_;
  mutable Mutex mutex_;
  std::vector<uint32_t> readers_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<bool> kept_;
  std::vector<bool> released_ HOLDFAST_GUARDED_BY(mutex_);
};

// What the ends of all streams of a rank have in common.
struct StreamWork {
  const MoveOptions* options = nullptr;
  ExchangeProgress* progress = nullptr;
  OldPieces* old = nullptr;
  PieceWriter* writer = nullptr;
  MemoryCount* memory = nullptr;
  int64_t quota = 0;  // how many bytes may be on their way in one stream
};

// Ends a stream before it has begun, whichever side of it this rank is.
void refuse_stream(const PairLink& link);

class StreamSender {
 public:
  StreamSender(const PairLink& link, const PairStream& stream, const StreamWork& work)
      : link_(link), stream_(stream), work_(work) {}

  // Sends the whole stream. If it fails, the receiver is told.
  Result<void> run();
  Carrier carrier() const { return carrier_; }
  int64_t sent() const { return sent_; }

 private:
  Result<void> send_all(Outlet& outlet);
  Result<void> wait_for_grant(int64_t end);
  Result<void> wait_for_arrivals(int64_t first, int64_t end);
  void finish_parts(int64_t end);

  const PairLink link_;
  const PairStream& stream_;
  const StreamWork work_;
  Carrier carrier_ = Carrier::kTransport;
  int64_t sent_ = 0;
  int64_t granted_ = 0;
  size_t finished_ = 0;  // the first so many parts are not read any more
};

class StreamReceiver {
 public:
  StreamReceiver(const PairLink& link, const PairStream& stream, const StreamWork& work)
      : link_(link), stream_(stream), work_(work), own_(stream.parts().size()) {}

  // Receives the whole stream. If this rank fails, the sender is told, and is not left
  // waiting.
  Result<void> run();
  // Compares the seals. Called when the writer has finished.
  Result<void> check_seals();
  Carrier carrier() const { return carrier_; }
  int64_t received() const { return received_; }

 private:
  Result<void> receive_all(Inlet& inlet);
  Result<void> grant_from(int64_t at);
  Result<void> send_grant(uint64_t limit);
  Result<void> drop_rest(Inlet& inlet);
  Result<void> note_arrivals(int64_t first, int64_t end);
  Result<void> seal_until(int64_t end);
  Result<void> seal_devices();
  Error differs(size_t part) const;

  const PairLink link_;
  const PairStream& stream_;
  const StreamWork work_;
  Carrier carrier_ = Carrier::kTransport;
  int64_t received_ = 0;
  int64_t granted_ = 0;
  size_t finished_ = 0;    // the first so many parts have arrived
  std::vector<Seal> own_;  // of this rank's memory, by part
  size_t sealed_ = 0;      // the first so many parts are in own_, if on the host
  Bytes said_;             // the seals that the sender sent
};

}  // namespace holdfast
