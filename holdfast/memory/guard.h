// Catches writes to tensors between save() and their capture.
//
// A save copies the state while the next forward and backward run. These normally only
// read the state. Code that writes to it nevertheless (an embedding that renormalises
// its rows, a clamp, an average of the weights that is swapped in) would tear the
// checkpoint. The guard finds such writes: it compares the copy with the tensors as
// they were inside save(), and with the tensors as they are when training is about to
// change them. Both looks at the tensors happen on the training thread. The guard
// compares either a few lines of every piece, different ones in every save
// (sample_lines.h), or the digest of the whole piece.
//
// Both comparisons are needed. The first finds a write between save() and the copy, for
// example an average that is swapped in for a validation and out again before the
// update. The second finds a write after the copy.
//
// Tensors that a device copies straight into the staging ring are guarded by a probe:
// at both times the lines are copied inside the device before training's stream goes
// on. The committing thread compares these copies later, so that training does not
// wait.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "holdfast/base/future.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/memory/device_rooms.h"
#include "holdfast/memory/sample_lines.h"

namespace holdfast {

// The guard of one save of one rank. The capturing thread calls staged(). The training
// thread calls the constructor and, once all is staged, changed() and decide(); it
// calls probe() inside save() and before the update. The committing thread calls
// verdict() and probed().
class CaptureGuard {
 public:
  // Keeps lines or digests of the pieces as they are now. `offsets` says where each
  // piece begins in the file; `turn` counts saves. Pieces that are at_once need no
  // guard. Both lists must outlive the guard.
  CaptureGuard(Guard depth, std::span<const LocalPiece> pieces,
               std::span<const int64_t> offsets, uint64_t turn);

  // Takes the bytes of the file as they were copied, in order and without gaps.
  void staged(int64_t offset, ByteView bytes);
  // The numbers of the pieces whose bytes, inside save() or now, differ from the copy.
  // With kSample, pieces on devices are left out: probed() names those.
  Result<std::vector<size_t>> changed() const;
  // Begins to copy lines of the pieces that are on devices, as they are now.
  void probe(DeviceRooms& rooms, CudaStream stream);

  // decide() says, once, whether the copy is good; verdict() waits for that answer.
  void decide(Result<void> verdict) { verdict_.keep(std::move(verdict)); }
  Result<void> verdict() { return verdict_.wait(); }
  // The numbers of the pieces whose probed lines differ from the copy. Called after all
  // is staged.
  Result<std::vector<size_t>> probed();

 private:
  // The digests of a whole piece, as it was inside save() and as it was copied.
  struct Digests {
    Digest128 before{};
    Digest128 copied{};
  };
  // A line that every probe copies.
  struct Probed {
    size_t piece;
    SampleLines::Line line;
  };

  // A piece that was copied inside save() cannot be torn, so it is not guarded.
  bool is_guarded(size_t piece) const {
    return !pieces_[piece].at_once && pieces_[piece].bytes() > 0;
  }
  bool is_here(size_t piece) const { return pieces_[piece].device == nullptr; }
  ByteSpan kept(const SampleLines::Line& line) const {
    return {kept_.get() + line.place, static_cast<size_t>(line.size)};
  }
  void keep_lines();
  void keep_digests();
  void note(size_t piece, int64_t offset, ByteView bytes);
  void note_line(size_t piece, const SampleLines::Line& line, int64_t offset,
                 ByteView bytes);
  bool has_changed(size_t piece) const;
  Result<bool> digest_has_changed(size_t piece) const;
  Result<void> compare_probe(const DeviceProbe& probe, std::set<size_t>& changed) const;

  const Guard depth_;
  const std::span<const LocalPiece> pieces_;
  const std::span<const int64_t> offsets_;
  size_t piece_ = 0;  // the piece that staged() has come to

  // For kSample. kept_ has the lines of pieces on the host as they were inside save(),
  // and the lines of pieces on devices as they are in the copy.
  SampleLines lines_;
  std::unique_ptr<std::byte[]> kept_;
  std::vector<bool> differs_;  // by piece: staged() found that lines of the copy differ

  // For kFull.
  std::vector<Digests> digests_;
  Xxh3Stream stream_;  // digests the copy of the piece that staged() has come to

  std::vector<Probed> probed_;
  std::vector<DeviceProbe> probes_;

  Future<Result<void>> verdict_;
};

}  // namespace holdfast
