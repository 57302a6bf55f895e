// Writes bytes that come from files or from other ranks into the pieces of a rank, in
// host memory or on devices. Several threads may write at once, into boxes that do not overlap.
#pragma once

#include <memory>
#include <span>

#include "holdfast/device/device_upload.h"
#include "holdfast/memory/local_state.h"

namespace holdfast {

class PieceWriter {
 public:
  // Bytes for pieces on devices pass through a ring of pinned blocks, which is made when the
  // first of them come, because pinning takes a while.
  explicit PieceWriter(std::span<const LocalPiece> into);

  // Writes `window`, the bytes from byte `at` on of the stream (box_stream.h) of `box`.
  // `box` is a part of the piece `to`, and `element` is the size of an element in
  // bytes.
  Result<void> put(const LocalPiece& to, const Box& box, int64_t element, int64_t at,
                   ByteView window);
  // Writes `box`, whose elements lie in `window` where `from` says.
  Result<void> put_part(const LocalPiece& to, const Box& box, int64_t element,
                        const Map& from, ByteView window);
  // Waits until all bytes have arrived in the pieces.
  Result<void> finish();

 private:
  DeviceUpload& upload();

  Device* pinner_ = nullptr;  // null if no piece is on a device
  Mutex mutex_;
  std::unique_ptr<StagingRing> ring_ HOLDFAST_GUARDED_BY(mutex_);
  std::unique_ptr<DeviceUpload> upload_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
