// Finds bytes of tensors that change while they should rest.
//
// Between two updates nothing writes to parameters and to the slots of optimizers. So a
// part of their bytes can be sealed (state/seal.h) after one update, and sealed again
// before the next one: if the two seals differ, something has changed the bytes that was
// no update. The bytes between are called a freeze window. A window is a range of parts
// of up to kPart bytes each, so that a difference is found in a small part, and so that
// a caller can afford to look at another window in every step.
//
// If one word of a part has changed, its two seals say which word it was and what stood
// there (state/changed_word.h). A part can also be compared with the seal that another rank
// has for its replica, and replaced by the bytes of that rank.
//
// Parts are numbered through all pieces, in the order of the pieces. Two ranks that hold
// the same boxes of the same tensors in the same order have the same parts, and equal
// bytes give equal seals, however the tensors lie in memory.
//
// Pieces on devices are sealed by the device; if it cannot, they are read through host
// memory. Both happen in a CUDA stream of our own, and every call waits until they are
// done. wait_for() makes that stream wait for the work of the training's stream.
//
// Threads: all calls come from one thread. Nothing may write to the pieces during a call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/device/device.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/state/element.h"
#include "holdfast/state/seal.h"

namespace holdfast {

// An element whose bits are not what they were, in words for people.
struct RestingChange {
  std::string tensor{};
  std::vector<int64_t> index{};
  std::string bits{};    // "bit 30"
  std::string before{};  // "0.0213"
  std::string after{};   // "7.25e+36"
};

class FreezeWindow {
 public:
  static constexpr int64_t kPart = int64_t{64} << 10;

  // The pieces must stay alive and where they are for as long as this object is used.
  explicit FreezeWindow(LocalPieces pieces);

  size_t parts() const { return parts_.size(); }
  // The bytes of all pieces.
  int64_t bytes() const { return bytes_; }
  // The bytes of the parts [first, last).
  int64_t bytes(size_t first, size_t last) const;
  // The number of the piece that a part belongs to.
  size_t piece_of(size_t part) const { return parts_[part].piece; }
  // The parts of a piece: [first, last).
  std::pair<size_t, size_t> parts_of(size_t piece) const;
  // Cuts all parts into so many windows, of about as many bytes each. A window is empty
  // if there are more windows than parts. Returns the first part of each window, and
  // then parts().
  std::vector<size_t> cut(size_t windows) const;

  // Waits for the work that is in the stream now. Pieces on devices are then read and
  // written as they are after it. Does nothing if all pieces are in host memory.
  Result<void> wait_for(CudaStream stream) const;
  // Seals the parts [first, last). Returns a digest of their seals, which is equal for
  // equal bytes.
  Result<std::string> open(size_t first, size_t last);
  // Seals the same parts again. Returns the parts whose seals differ now.
  Result<std::vector<size_t>> close();
  // The seal that open() computed. The part must be one of the window.
  const Seal& sealed(size_t part) const { return sealed_[part - first_]; }

  // The seal of the part as it is now.
  Result<Seal> seal(size_t part) const;
  // The elements that would change if mend() were called. Empty if more than one word of
  // the part has changed, or none.
  Result<std::vector<RestingChange>> find(size_t part, const Seal& sealed) const;
  // Makes the part what it was when it had the seal `sealed`. Returns the elements that
  // were wrong. Fails with kCorrupt, and changes nothing, if more than one word differs.
  Result<std::vector<RestingChange>> mend(size_t part, const Seal& sealed);
  // The bytes of a part, and the reverse. write() returns the elements that differed, up
  // to kNamed of them. It fails with kInvalid for another number of bytes.
  Result<Bytes> read(size_t part) const;
  Result<std::vector<RestingChange>> write(size_t part, ByteView bytes);

  // So many elements of a part are named at most.
  static constexpr size_t kNamed = 4;

 private:
  struct Part {
    size_t piece;
    int64_t first;  // the first byte, in the stream of the piece (box_stream.h)
    int64_t size;
  };

  Result<std::vector<Seal>> seals(size_t first, size_t last) const;
  LocalPiece plain_bytes_of(const Part& part, ByteView live) const;
  Result<std::optional<Bytes>> bytes_before(size_t part, const Seal& sealed,
                                            ByteView now) const;
  std::vector<RestingChange> compare(size_t part, ByteView before,
                                      ByteView after) const;
  Error beyond_repair(size_t part) const;

  const LocalPieces pieces_;
  const std::vector<const Device*> devices_;  // that hold pieces
  std::vector<std::shared_ptr<const Tensor>> streams_;  // of the pieces, as bytes
  std::vector<Part> parts_;
  std::vector<size_t> first_parts_;  // the first part of each piece, and then parts()
  int64_t bytes_ = 0;
  size_t first_ = 0;          // the first part of the window
  std::vector<Seal> sealed_;  // the seals of the window's parts
  mutable Bytes buffer_;      // for pieces that are not contiguous in memory
};

}  // namespace holdfast
