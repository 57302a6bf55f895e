// Catches writes to tensors between save() and their capture.
//
// A save copies the state while the next forward and backward run, which only read it. Code
// that writes nevertheless (an embedding that renormalises its rows, a clamp, an average
// swapped in) would tear the checkpoint. So the copy is held against the tensors, as they were
// inside save() and as they are before they may change, both on the training thread: a few
// lines of every piece, others in every save (sample_lines.h), or all of it, by its digest.
// (The first alone would miss what comes between two lines, the second what comes before
// the copy.) An average that is swapped in for a validation, and out again before the update,
// is seen in the copy: the lines that were copied meanwhile are not those of save(). Of
// tensors that a device copies into the ring the lines are copied inside the device before
// training's stream goes on, both times, and looked at later, when nobody waits.
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

enum class Guard {
  kOff,     // the caller waits for captured() itself
  kSample,  // some lines of every piece
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
  // Looks at the pieces, where they live, as they are now; `offsets` says where each begins
  // in the file, `turn` counts saves. What is at_once needs no guard. Both lists must
  // outlive it.
  CaptureGuard(Guard depth, std::span<const LocalPiece> pieces,
               std::span<const int64_t> offsets, uint64_t turn);

  // Bytes of the file as they were copied, in order and without gaps.
  void staged(int64_t offset, ByteView bytes);
  // Numbers of the pieces whose bytes, then or now, are not those of the copy, as far as
  // that is seen without waiting for a device.
  Result<std::vector<size_t>> changed() const;
  // Takes lines of the pieces that are on devices, as they are now.
  void probe(DeviceRooms& rooms, CudaStream stream);

  // Whether the copy is good, said once, and waited for.
  void settle(Result<void> verdict) { verdict_.keep(std::move(verdict)); }
  Result<void> settled() { return verdict_.wait(); }
  // Numbers of the pieces whose probed lines are not those of the copy. After all is staged.
  Result<std::vector<size_t>> probed();

 private:
  // The digests of a whole piece, as it was inside save() and as it was copied.
  struct Digests {
    Digest128 before{};
    Digest128 copied{};
  };
  // A line that was probed, each time.
  struct Probed {
    size_t piece;
    SampleLines::Line line;
  };

  // What was copied inside save() cannot have been torn.
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
  size_t piece_ = 0;  // where staged() is

  // To sample: what the lines of the host's pieces were in save(), and those of devices'
  // in the copy.
  SampleLines lines_;
  std::unique_ptr<std::byte[]> kept_;
  std::vector<bool> differs_;  // pieces whose copy has other lines; staged() says so

  // To look at all.
  std::vector<Digests> digests_;
  Xxh3Stream stream_;  // of the copy of the piece where staged() is

  std::vector<Probed> probed_;
  std::vector<DeviceProbe> probes_;

  Future<Result<void>> verdict_;
};

}  // namespace holdfast
