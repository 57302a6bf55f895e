// A CUDA device, and a stream of our own on it by which saves and restores copy.
//
// The copies that are asked for here are put into that stream, in order, and the call
// returns. A mark is a point in a stream's order: other streams can be made to wait for it
// without anybody waiting here, and threads can wait for it.
//
//   const DeviceMark now = device.mark(training);   // after what training has begun
//   device.follow(now);                             // our stream goes on from there
//   device.read(...);  const DeviceMark read = device.mark();
//   device.make_wait(training, read);               // the update comes after our copies
//
// A stream is of one device. A caller may have several devices and name one stream: for a
// device that the stream is not of, its default stream stands, in which frameworks put what
// nobody put elsewhere.
//
// Memory of the device is named by spans that nobody here looks into. Boxes that are not
// contiguous are copied row by row, in one call for rows that lie at one distance: right in
// any case, and slow where rows are of a few bytes.
//
// Errors are those of cuda_driver.h. Threads: all calls are safe at once, and need no GIL
// and no context of the caller's.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "holdfast/device/cuda_driver.h"
#include "holdfast/device/staging_ring.h"
#include "holdfast/state/box_stream.h"

namespace holdfast {

class Device;

// May be copied, and outlive its streams; not its device.
class DeviceMark {
 public:
  // True if the stream has come to it.
  Result<bool> done() const;
  // Sleeps until then.
  Result<void> wait() const;
  const Device& device() const { return *device_; }

 private:
  friend class Device;
  DeviceMark(const Device* device, std::shared_ptr<void> event)
      : device_(device), event_(std::move(event)) {}

  const Device* device_;
  std::shared_ptr<void> event_;  // of all copies of the mark
};

class Device : public HostPinner {
 public:
  // The driver must outlive it.
  static Result<std::unique_ptr<Device>> open(CudaDriver& driver, int number);
  // Waits for the copies that are under way.
  ~Device() override;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int number() const { return number_; }

  // Where a stream is now: the caller's, and ours.
  Result<DeviceMark> mark(CudaStream stream) const;
  Result<DeviceMark> mark() const { return mark(stream_); }
  // What is put into the stream from now on comes after the mark.
  Result<void> make_wait(CudaStream stream, const DeviceMark& mark) const;
  Result<void> follow(const DeviceMark& mark) const { return make_wait(stream_, mark); }

  // A window of the box's stream (box_stream.h), from the device's memory and to it. What
  // is in host memory stays as it is until our stream has passed; it is pinned, or the
  // call waits.
  Result<void> read(const BoxMemory& from, ByteView memory, int64_t first,
                    ByteSpan into) const;
  Result<void> write(const BoxMemory& to, ByteSpan memory, int64_t first,
                     ByteView from) const;

  // Copies of whole boxes of the device's memory into other memory of it. They are added
  // once, and can be run again for as long as both memories stay where they are.
  class InsideCopies {
   public:
    explicit InsideCopies(const Device& device) : device_(&device) {}
    void add(const BoxMemory& from, ByteView memory, ByteSpan into);
    // Puts all of them into our stream, in a few calls of the driver.
    Result<void> run() const;
    const Device& device() const { return *device_; }

   private:
    struct Strided {
      StridedCopy copy;
      ByteView from;
      ByteView to;
    };
    void add_part(const StridedCopy& part, ByteView memory, ByteSpan into);

    const Device* device_;
    std::vector<CudaCopy> runs_;      // one kernel does all of them
    std::vector<Strided> scattered_;  // a call of the driver each, or more
  };

  // Memory of the device. kNoSpace if fewer than `reserve` bytes would stay free. Freeing
  // may make the device wait.
  Result<ByteSpan> allocate(int64_t bytes, int64_t reserve) const;
  void free(ByteSpan memory) const;

  // Host memory, for all devices.
  Result<void> pin(ByteSpan memory) override;
  void unpin(ByteSpan memory) override;

 private:
  friend class DeviceMark;
  friend class InsideCopies;
  class Entered;

  Device(CudaDriver& driver, int number, CudaContext context)
      : driver_(driver), number_(number), context_(context) {}
  CudaStream here(CudaStream stream) const;
  Result<CudaEvent> take_event() const;
  Result<void> copy(const StridedCopy& copy, ByteView from, ByteView to) const;
  Result<void> copy_loops(const StridedCopy& copy, int depth, DeviceAddress from,
                          DeviceAddress to) const;

  CudaDriver& driver_;
  const int number_;
  const CudaContext context_;
  CudaStream stream_ = nullptr;
  CudaKernel copier_ = nullptr;  // null where the driver has none
  // Events that no mark uses any more. To make a new one takes longer than to record it.
  mutable Mutex spare_mutex_;
  mutable std::vector<CudaEvent> spare_ HOLDFAST_GUARDED_BY(spare_mutex_);
};

// The devices that the pieces are on, each once.
std::vector<const Device*> devices_of(const auto& pieces) {
  std::vector<const Device*> devices;
  for (const auto& piece : pieces) {
    if (piece.device == nullptr || std::ranges::count(devices, piece.device) > 0)
      continue;
    devices.push_back(piece.device);
  }
  return devices;
}

// What all of them read and write from now on comes after what was put into the stream.
Result<void> follow_stream(std::span<const Device* const> devices, CudaStream stream);

// The devices of this process, each opened when memory of it is first seen.
class Devices {
 public:
  // The driver must outlive it.
  explicit Devices(CudaDriver& driver) : driver_(driver) {}

  // Whose memory it is; null for the host's. kInvalid if it is not one device's from end
  // to end.
  Result<Device*> of(ByteView memory);

 private:
  CudaDriver& driver_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Device>> open_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
