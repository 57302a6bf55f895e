// A CUDA device, and a stream of our own on it in which saves and restores copy.
//
// A call puts its copies into that stream, in order, and returns without waiting for
// them. A mark is a point in the order of a stream's work: other streams can be made to
// wait for it while no thread waits, and threads can wait for it too.
//
//   const DeviceMark now = device.mark(training);   // after what training has begun
//   device.follow(now);                             // our stream goes on from there
//   device.read(...);  const DeviceMark read = device.mark();
//   device.make_wait(training, read);               // the update waits for our copies
//
// A stream belongs to one device. A caller may have several devices and name one
// stream; on a device that the stream does not belong to, that device's default stream
// is used instead, because frameworks put their work there unless told otherwise.
//
// Memory of the device is named by spans, which are only used as addresses. Boxes that
// are not contiguous are copied row by row; one call copies all rows that have the same
// distance. That is always correct, but slow if the rows have only a few bytes.
//
// Errors are those of cuda_driver.h. Threads: all calls are safe from several threads
// at once. The caller needs neither Python's GIL nor a CUDA context.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "holdfast/device/cuda_driver.h"
#include "holdfast/device/staging_ring.h"
#include "holdfast/state/box_stream.h"

namespace holdfast {

class Device;

// A point in the order of a stream's work. It may be copied. It may outlive its stream,
// but not its device.
class DeviceMark {
 public:
  // True if the stream has reached the mark.
  Result<bool> done() const;
  // Sleeps until the stream has reached the mark.
  Result<void> wait() const;
  const Device& device() const { return *device_; }

 private:
  friend class Device;
  DeviceMark(const Device* device, std::shared_ptr<void> event)
      : device_(device), event_(std::move(event)) {}

  const Device* device_;
  std::shared_ptr<void> event_;  // shared by all copies of the mark
};

// Memory for the sums of seals, on the device and a pinned copy on the host.
class SealRoom {
 public:
  SealRoom(ByteSpan on_device, std::byte* on_host)
      : on_device_(on_device), on_host_(on_host) {}
  const std::byte* on_host() const { return on_host_.get(); }

 private:
  friend class Device;
  struct Free {
    void operator()(std::byte* memory) const;
  };
  ByteSpan on_device_;
  std::unique_ptr<std::byte[], Free> on_host_;
  bool pinned_ = false;
};

class Device : public HostPinner {
 public:
  // The driver must outlive the device.
  static Result<std::unique_ptr<Device>> open(CudaDriver& driver, int number);
  // Waits for the copies that are under way.
  ~Device() override;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int number() const { return number_; }

  // A mark after all work that is in the stream now. Without an argument: in our
  // stream.
  Result<DeviceMark> mark(CudaStream stream) const;
  Result<DeviceMark> mark() const { return mark(stream_); }
  // All work that is put into the stream from now on waits for the mark. follow() does
  // this for our stream.
  Result<void> make_wait(CudaStream stream, const DeviceMark& mark) const;
  Result<void> follow(const DeviceMark& mark) const { return make_wait(stream_, mark); }

  // Copy a window of the box's bytes (box_stream.h) from the device's memory, or to it.
  // The host memory must stay valid and unchanged until our stream has made the copy.
  // If it is not pinned, the call waits for the copy.
  Result<void> read(const BoxMemory& from, ByteView memory, int64_t first,
                    ByteSpan into) const;
  Result<void> write(const BoxMemory& to, ByteSpan memory, int64_t first,
                     ByteView from) const;

  // Copies of whole boxes of the device's memory into other memory of the same device.
  // They are added once and can be run many times, as long as both memories stay where
  // they are.
  class InsideCopies {
   public:
    explicit InsideCopies(const Device& device) : device_(&device) {}
    void add(const BoxMemory& from, ByteView memory, ByteSpan into);
    void add(const StridedCopy& copy, ByteView memory, ByteSpan into);
    // Puts all copies into our stream, by a few calls of the driver.
    Result<void> run() const;
    const Device& device() const { return *device_; }
    // Forgets what was added.
    void clear();

   private:
    struct Strided {
      StridedCopy copy;
      ByteView from;
      ByteView to;
    };

    const Device* device_;
    void add_rows(const StridedCopy& copy, int depth, DeviceAddress from,
                  DeviceAddress to);

    std::vector<CudaCopy> runs_;      // copied all together by our kernel
    std::vector<CudaRows> rows_;      // likewise
    std::vector<Strided> scattered_;  // each needs one or more calls of the driver
  };

  // Allocates memory of the device. kNoSpace if fewer than `reserve` bytes would stay
  // free. Freeing may make the device wait.
  Result<ByteSpan> allocate(int64_t bytes, int64_t reserve) const;
  void free(ByteSpan memory) const;

  // Why the device cannot compute seals (device_seals.h); nullopt if it can.
  const std::optional<Error>& seal_error() const { return seal_error_; }
  bool can_seal() const { return sealer_ != nullptr; }
  // For DeviceSeals: a room for so many bytes of sums, which are kept for the next time;
  // and the work that computes the sums of the runs there and copies them to the host.
  Result<SealRoom*> take_seal_room(int64_t bytes) const;
  void give_back(SealRoom& room) const;
  // Makes `count` such rooms, unless there are as many, so that no save has to.
  Result<void> prepare_seal_rooms(size_t count, int64_t bytes) const;
  Result<void> seal(std::span<const CudaSealRun> runs, const SealRoom& room) const;

  // Pin host memory for all devices.
  Result<void> pin(ByteSpan memory) override;
  void unpin(ByteSpan memory) override;

 private:
  friend class DeviceMark;
  friend class InsideCopies;
  class Entered;

  Device(CudaDriver& driver, int number, CudaContext context)
      : driver_(driver), number_(number), context_(context) {}
  void load_kernels();
  Result<std::unique_ptr<SealRoom>> make_seal_room(int64_t bytes) const;
  CudaStream stream_on_this_device(CudaStream stream) const;
  Result<CudaEvent> take_event() const;
  Result<void> copy(const StridedCopy& copy, ByteView from, ByteView to) const;
  Result<void> copy_loops(const StridedCopy& copy, int depth, DeviceAddress from,
                          DeviceAddress to) const;

  CudaDriver& driver_;
  const int number_;
  const CudaContext context_;
  CudaStream stream_ = nullptr;
  CudaKernel copier_ = nullptr;  // null if the driver could not load the kernel
  CudaKernel row_copier_ = nullptr;  // likewise
  CudaKernel sealer_ = nullptr;  // likewise
  std::optional<Error> seal_error_;
  // Events that no mark uses any more, kept because creating an event takes longer than
  // recording one.
  mutable Mutex spare_mutex_;
  mutable std::vector<CudaEvent> spare_ HOLDFAST_GUARDED_BY(spare_mutex_);
  // Kept, because freeing device memory makes the device wait.
  struct HeldRoom {
    std::unique_ptr<SealRoom> room;
    bool taken;
  };
  mutable std::vector<HeldRoom> seal_rooms_ HOLDFAST_GUARDED_BY(spare_mutex_);
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

// Makes the streams of all these devices wait for the work that is in `stream` now.
Result<void> follow_stream(std::span<const Device* const> devices, CudaStream stream);

// The devices of this process. Each is opened when its memory is first seen.
class Devices {
 public:
  // The driver must outlive this object.
  explicit Devices(CudaDriver& driver) : driver_(driver) {}

  // The device whose memory this is; null for host memory. kInvalid if the memory
  // begins on one device and ends on another, or on the host.
  Result<Device*> of(ByteView memory);

 private:
  CudaDriver& driver_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Device>> open_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
