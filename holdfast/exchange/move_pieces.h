// Carries out a rank's part of a plan: the executor of exchanges.
//
//   1. Each stream that the rank sends or receives has a thread of its own, so that a
//      pair that waits holds up no other. The calling thread makes the memory of new
//      pieces, lot by lot, and copies inside the rank's memory.
//   2. A receiver grants its sender so many bytes of the stream as it has memory for:
//      those of lots that have come up, and at most its share of `on_the_way` beyond
//      what has arrived. The sender sends nothing without a grant.
//   3. A box that is passed on is sent window by window, as far as it has arrived.
//   4. Lots come up in one order on all ranks, and the first lot that is open anywhere
//      can come up everywhere. So there is always a pair that can go on.
//   5. If a thread fails, all threads of the rank stop: senders give up, and receivers
//      refuse by a last grant and drop what still arrives until their sender has given up.
#pragma once

#include <array>
#include <functional>

#include "holdfast/exchange/carrier.h"
#include "holdfast/exchange/own_moves.h"
#include "holdfast/exchange/storage.h"

namespace holdfast {

struct MoveOptions {
  Env* env = nullptr;
  // The link to another rank. The executor sets `stopped`.
  std::function<PairLink(int)> link_to{};
  // Pieces on CUDA devices are read and written after the work that is in this stream.
  CudaStream stream = nullptr;
  // If true, memory is made when a lot comes up and old pieces are released after their
  // last reader. If false, all new pieces have memory before.
  bool windowed = false;
  // If true, the sender says the seal of each box, and the receiver compares it with the
  // seal of what is in its own memory.
  bool seals = false;
  int64_t on_the_way = int64_t{256} << 20;
  Instant deadline = kNoDeadline;
};

struct MoveCounts {
  std::array<int64_t, kCarriers> received{};  // by carrier
  std::array<int64_t, kCarriers> sent{};      // by carrier
  int64_t copied = 0;                         // inside the rank's memory
  // The most bytes that new pieces, old ones that were not released, and buffers had at
  // one time.
  int64_t peak = 0;
};

// Counts the bytes that a rank holds, and remembers the most that it held.
class MemoryCount {
 public:
  void add(int64_t bytes) {
    const int64_t now = now_.fetch_add(bytes) + bytes;
    int64_t most = most_.load();
    while (most < now && !most_.compare_exchange_weak(most, now)) {
    }
  }
  int64_t most() const { return most_.load(); }

 private:
  std::atomic<int64_t> now_ = 0, most_ = 0;
};

// Makes the new piece, or takes the old one that it is, and gives it its place. Adds the
// bytes to the count.
Result<void> make_piece_of(OwnMoves& moves, uint32_t number, PieceStorage& storage,
                           MemoryCount& memory);

// Instead of move_pieces(), for a rank that has failed before: tells the ranks that it
// would send to or receive from. Does not wait.
void refuse_streams(const OwnMoves& moves, const MoveOptions& options);

// `old` and `moves` must be those of one rank. On failure returns the error of this rank
// that is most likely the cause (weight_of()); the contents of new pieces are then
// undefined. Old pieces that were released are true in `released`, which has one entry for
// each.
Result<MoveCounts> move_pieces(OwnMoves& moves, const LocalPieces& old,
                               PieceStorage& storage, const MoveOptions& options,
                               MemoryCount& memory, std::vector<bool>& released);

}  // namespace holdfast
