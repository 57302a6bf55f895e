// The state as one rank sees it: which tensors there are and which rank holds which box
// of them (this part is the same on all ranks), and where this rank's pieces are in its
// memory.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/shared_list.h"
#include "holdfast/state/collection.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

class Device;
struct BoxMemory;
struct Digest128;
struct Seal;

// A stream of CUDA, as in cuda_driver.h. Null is the default stream.
using CudaStream = void*;

// Describes bytes in memory: what a training process holds, what a save writes, and
// what a restore fills. It does not own the memory: the caller keeps the memory alive,
// and unchanged until the save is captured.
struct LocalPiece {
  std::shared_ptr<const Tensor> tensor;  // the whole one; shared by all its pieces
  Box box;
  ByteSpan memory;
  Map map;                         // relative to memory
  const Device* device = nullptr;  // where the memory is; null for the host
  // True if the piece is copied inside save(), because it may change before the next
  // update, as buffers and counters do.
  bool at_once = false;

  int64_t bytes() const { return box.elements() * bytes_of(tensor->dtype); }
  BoxMemory place() const;
  // The memory of the bytes [first, first + size) of the piece's stream; nullopt if the
  // piece's memory is not contiguous.
  std::optional<ByteView> window(int64_t first, int64_t size) const;
  // True if both are the same box of the same tensor, wherever they lie in memory.
  bool is_same_box(const LocalPiece& other) const;

  friend bool operator==(const LocalPiece& a, const LocalPiece& b);
};

// A list of pieces. Make it once and pass it again for as long as the tensors stay
// where they are: a save recognises the list and need not look at each piece.
using LocalPieces = SharedList<LocalPiece>;

// Both make a piece with a Tensor object of its own. The second is for elements that lie
// one after the other in `memory`, row by row:
//
//   make_piece("heat", std::span(rows), {1000, 80}, Box{{250, 500}, {0, 80}})
LocalPiece make_piece(Tensor tensor, const Box& box, ByteSpan memory, const Map& map);
template <typename T, size_t N>
LocalPiece make_piece(std::string name, std::span<T, N> memory, const Shape& shape,
                      const Box& box) {
  return make_piece({.name = std::move(name), .dtype = dtype_for<T>(), .shape = shape},
                    box, std::as_writable_bytes(memory), Map::dense(box, sizeof(T)));
}

// The same for a whole tensor whose elements lie one after the other, row by row. The
// first is for dtypes that have no C++ type, or that are known only at run time.
LocalPiece whole_piece(Tensor tensor, ByteSpan memory);
template <typename T, size_t N>
LocalPiece whole_piece(std::string name, std::span<T, N> memory, const Shape& shape) {
  return make_piece(std::move(name), memory, shape, Box::whole(shape));
}

// The CUDA device that has this memory, for LocalPiece::device. Devices are opened at
// the first call for them and live until the process ends. Fails with kUnsupported if
// the CUDA driver cannot be loaded.
Result<const Device*> device_of(ByteView memory);

// XXH3-128 of the bytes that are in memory now: of the whole piece, or of
// [first, first + size) of its stream.
Result<Digest128> digest_of(const LocalPiece& piece);
Result<Digest128> digest_of(const LocalPiece& piece, int64_t first, int64_t size);
// The seal of the bytes that are in memory now, as a part of the tensor's seal. A device
// seals its own memory, if it can (device_seals.h), and all of seals_of() at once.
Result<Seal> seal_of(const LocalPiece& piece);
Result<std::vector<Seal>> seals_of(std::span<const LocalPiece> pieces);
// Copies a window of the piece's stream as it is now. If the piece is on a device,
// waits until the device has copied it.
Result<void> read_piece(const LocalPiece& piece, int64_t first, ByteSpan into);

struct LocalState {
  // The tensors and their layout over the ranks: holder r is rank r. The offsets of its
  // pieces are not used. The object is shared between saves: for as long as it is the
  // same object, a save need not be planned again.
  std::shared_ptr<const Collection> collection;
  int rank = 0;
  // One for each piece of holder `rank`, in any order.
  LocalPieces pieces;

  // Fails with kInvalid, and names the tensor and the box, unless the pieces are
  // exactly those that the collection says this rank holds, and each lies inside its
  // memory.
  Result<void> check() const;

  // True for the same boxes at the same addresses: a plan for one state fits the other.
  friend bool operator==(const LocalState&, const LocalState&) = default;
};

// Fails with kInvalid, and names two tensors, if two pieces in the host's memory share
// bytes: restoring one would change the other. Pieces that alternate in memory without
// sharing bytes, such as the columns of a matrix, are fine. Does not look at devices.
Result<void> check_no_overlap(const LocalState& state);

// How a save finds out whether a tensor was written to before it was captured
// (guard.h).
enum class Guard {
  kOff,     // the caller waits for captured() itself
  kSample,  // compares some lines of every piece
  kFull,    // compares every byte, by digests
};

// From which bytes a save computes the seals of pieces (state/seal.h).
enum class SealAt {
  kStaged,  // from the copy that is written
  // The same, but a device that can seals its own memory. That takes little of its time.
  kDevices,
  kSource,  // also from the memory of pieces on the host, while it is copied
};

// The state of a job of one rank, which holds whole tensors. `like` is the state of an
// earlier call, or null. If it has the same tensors, its collection is used again, so
// that nothing need be planned again.
Result<LocalState> make_local_state(const LocalPieces& tensors,
                                    const LocalState* like = nullptr);
// What one rank holds of a state, without what others hold: a tensor may have a part here.
// For reading these boxes from a checkpoint; a save of it would not be whole.
Result<LocalState> make_part_of_state(const LocalPieces& pieces);

}  // namespace holdfast
