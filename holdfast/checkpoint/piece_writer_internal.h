// Puts bytes into the pieces of a rank, in main memory or on devices, as they come from
// files. Readers of several threads may put at once; what they put must be disjoint.
#pragma once

#include <memory>

#include "holdfast/device/device_upload.h"
#include "holdfast/memory/local_state.h"

namespace holdfast {

class PieceWriter {
 public:
  // Makes the pinned blocks that pieces on devices are filled through, if there are any.
  explicit PieceWriter(const LocalState& into);

  // A window of the stream (box_stream.h) of `box`, which is a part of the piece; it
  // begins at byte `at`.
  Result<void> put(const LocalPiece& to, const Box& box, int64_t element, int64_t at,
                   ByteView window);
  // The same for a box that lies in the window as `from` says.
  Result<void> put_part(const LocalPiece& to, const Box& box, int64_t element,
                        const Map& from, ByteView window);
  // Waits until all is there.
  Result<void> finish();

 private:
  std::unique_ptr<StagingRing> ring_;
  std::unique_ptr<DeviceUpload> upload_;
};

}  // namespace holdfast
