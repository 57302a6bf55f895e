// Seals of pieces that are on devices, computed by the devices (device_seals.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "holdfast/device/device_seals.h"
#include "holdfast/memory/local_state.h"

namespace holdfast {

// Makes memory on the devices for `count` saves that seal these pieces at the same time. A
// failure is ignored: the host seals what a device cannot.
void prepare_seals(std::span<const LocalPiece> pieces, size_t count);

// Used by one thread at a time.
class SealsOnDevices {
 public:
  // Each device begins to seal its pieces, as they are after the work that is in its
  // stream now. The memory must not change before that work is done.
  explicit SealsOnDevices(std::span<const LocalPiece> pieces);

  // Whether a device seals the piece. If not, the host has to: it has the piece, or the
  // device has no kernel or no memory for the sums, or the piece has too short rows.
  bool has(size_t piece) const { return has_[piece]; }
  // Waits for the devices, and sets the seals of the pieces that they have.
  Result<void> finish(std::span<Seal> seals);

 private:
  void begin(const Device& device, std::span<const LocalPiece> pieces);

  std::vector<bool> has_;
  std::vector<std::unique_ptr<DeviceSums>> sums_;
};

}  // namespace holdfast
