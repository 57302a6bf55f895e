// Seals of bytes in a device's memory, computed by the device itself (state/seal.h).
//
//   DeviceSeals seals(device);
//   if (!seals.add(0, runs, memory)) ...            // the host has to do it
//   const auto sums = HOLDFAST_TRY(seals.begin());  // in our stream, does not wait
//   const std::vector<Seal> made = HOLDFAST_TRY(sums->wait());
//
// The device reads its memory once, at about the speed of that memory. Nothing but the
// sums comes to the host.
//
// Errors are those of cuda_driver.h. Each object is used by one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "holdfast/device/device.h"
#include "holdfast/state/seal.h"
#include "holdfast/state/strided.h"

namespace holdfast {

// Seals that the device is computing. The destructor waits for them.
class DeviceSums {
 public:
  ~DeviceSums();
  DeviceSums(const DeviceSums&) = delete;
  DeviceSums& operator=(const DeviceSums&) = delete;

  // Sleeps until the seals are there. One for each number that was added.
  Result<std::vector<Seal>> wait();

 private:
  friend class DeviceSeals;
  // Which seal a run belongs to, and its bytes.
  struct Share {
    size_t seal;
    uint64_t bytes;
  };
  DeviceSums(const Device& device, SealRoom& room, std::vector<Share> shares)
      : device_(device), room_(room), shares_(std::move(shares)) {}

  const Device& device_;
  SealRoom& room_;
  const std::vector<Share> shares_;
  std::optional<DeviceMark> made_;
};

class DeviceSeals {
 public:
  // The device must outlive this object and the sums.
  explicit DeviceSeals(const Device& device) : device_(device) {}

  // Adds bytes of `memory`, which is the device's, to the seal with this number. The
  // target side of `runs` is the tensor's canonical bytes. Returns false, and adds
  // nothing, if the device has no kernel or the runs are too short or too many for it.
  bool add(size_t seal, const StridedCopy& runs, ByteView memory);
  // Makes memory for the sums of `count` times this work, so that begin() need not do it.
  Result<void> prepare(size_t count) const;

  // Puts the work into the device's stream, behind all that is in it now. What is added
  // later does not count.
  Result<std::unique_ptr<DeviceSums>> begin() const;

 private:
  int64_t bytes_of_sums() const;
  void add_rows(size_t seal, const CudaSealRun& rows);
  void add_run(size_t seal, const CudaSealRun& run);
  void add_loops(size_t seal, const StridedCopy& runs, int depth, DeviceAddress from,
                 uint64_t to);

  const Device& device_;
  std::vector<CudaSealRun> runs_;
  std::vector<DeviceSums::Share> shares_;
};

// The runs of a box of this tensor that lies in memory as `map` says, which is narrowed to
// the box, for DeviceSeals::add().
StridedCopy plan_seal(const Shape& shape, Dtype dtype, const Box& box, const Map& map);

}  // namespace holdfast
