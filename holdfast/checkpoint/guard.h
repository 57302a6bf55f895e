// Catches writes to tensors between save() and their capture.
//
// A save copies the state while the next forward and backward run, which only read it. Code
// that writes nevertheless (an embedding that renormalises its rows, a clamp, an average
// swapped in) would tear the checkpoint. So the copy is held against the tensors, as they were
// inside save() and as they are before they may change, both on the training thread: one
// block of 4 KiB of every piece, another one in every save, or all of it, by its digest.
// (The first alone would miss what comes between two blocks, the second what comes before
// the copy.) Of tensors that a device copies into the ring the blocks are copied inside the
// device before training's stream goes on, both times, and looked at later, when nobody
// waits.
#pragma once

#include <string>
#include <vector>

#include "holdfast/base/promised.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/checkpoint/device_rooms.h"

namespace holdfast {

enum class Guard {
  kOff,     // the caller waits for captured() itself
  kSample,  // a block of every piece
  kFull,    // every byte
};

// What Saver::settle() found.
struct Settled {
  double waited = 0;                // seconds until all was captured
  std::vector<std::string> torn{};  // tensors that were written to too early
};

// The guard of one save of one rank. staged() comes from the capturing thread, changed() to
// settle() from the training thread once all is staged, the rest from the committing one.
class CaptureGuard {
 public:
  static constexpr int64_t kBlock = 4096;

  // Looks at the pieces, where they live, as they are now; `turn` chooses the block. What
  // is at_once needs no guard. The pieces must outlive it.
  CaptureGuard(Guard depth, std::span<const PieceToWrite> pieces, uint64_t turn);

  // Bytes of the file as they were copied, in order and without gaps.
  void staged(int64_t offset, ByteView bytes);
  // Numbers of the pieces whose bytes, then or now, are not those of the copy, as far as
  // that is seen without waiting for a device.
  Result<std::vector<size_t>> changed() const;
  // Takes blocks of the pieces that are on devices, as they are now.
  void probe(DeviceRooms& rooms, CudaStream stream);

  // Whether the copy is good, said once, and waited for.
  void settle(Result<void> verdict) { verdict_.keep(std::move(verdict)); }
  Result<void> settled() { return verdict_.wait(); }
  // Numbers of the pieces whose probed blocks are not those of the copy. After all is staged.
  Result<std::vector<size_t>> probed();

 private:
  // What is looked at of a piece, the bytes [first, first + size) of its stream, and their
  // digests in save() and in the copy.
  struct Sample {
    int64_t first = 0;
    int64_t size = 0;
    Digest128 before{};
    Digest128 copied{};
  };

  Sample choose(const PieceToWrite& piece, uint64_t turn) const;
  // What was copied inside save() cannot have been torn.
  bool is_guarded(size_t piece) const {
    return !pieces_[piece].at_once && pieces_[piece].bytes() > 0;
  }
  // Without waiting for a device, unless all is to be looked at.
  bool is_read_here(size_t piece) const {
    return is_guarded(piece) &&
           (depth_ == Guard::kFull || pieces_[piece].device == nullptr);
  }
  Result<Digest128> digest_now(size_t piece) const;
  void note(size_t piece, int64_t offset, ByteView bytes);

  const Guard depth_;
  const std::span<const PieceToWrite> pieces_;
  std::vector<Sample> samples_;  // one a piece
  Xxh3Stream stream_;            // of the copy of the piece where staged() is
  size_t piece_ = 0;             // where staged() is

  std::vector<size_t> probed_;  // numbers of the pieces, the same every time
  std::vector<DeviceProbe> probes_;

  Promised<Result<void>> verdict_;
};

}  // namespace holdfast
