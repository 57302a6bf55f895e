// How a save takes tensors of CUDA devices. Where the device has room, they are copied inside
// it: training's stream waits for that, a few milliseconds a save, and nothing that it does
// afterwards can tear the copy. Else they go straight into the ring while the next forward and
// backward run, and training's stream waits before the update (DeviceShot::make_wait). No
// thread waits for the device in either case.
//
// What is to be copied at once, and finds no room in the device, is copied into the host's
// memory while save() waits: slow, and right. All that is more than a few MiB leaves a
// reserve of the device free, which training may need yet.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "holdfast/base/shared_list.h"
#include "holdfast/memory/device_snapshot.h"

namespace holdfast {

// The device copies of one save. Of one thread at a time.
class DeviceShot {
 public:
  // Devices whose tensors go straight into the staging ring, where a writer stages them.
  std::span<const Device* const> by_ring() const { return by_ring_; }

 private:
  friend class DeviceRooms;
  std::vector<std::unique_ptr<DeviceSnapshot>> snapshots_;
  std::vector<const Device*> by_ring_;  // devices whose tensors go straight to the ring
  std::vector<Bytes> in_host_;          // copies for which devices had no room
};

// Memory of a device, a few KiB at most.
struct DeviceBlock {
  const Device* device = nullptr;
  ByteView memory;
};

// Copies of blocks inside their device.
struct DeviceProbe {
  std::unique_ptr<DeviceSnapshot> snapshot;
  std::vector<ByteView> copies;  // one a block, none of those that are on other devices
};

// The memory of a saver on each device, kept between saves. Of the training thread; what it
// gives may be destroyed by others.
class DeviceRooms {
 public:
  // Takes memory for copies of these pieces, so that the first save need not. False where
  // a device has too little: then tensors go straight into the ring, and there is memory
  // to probe them, if that is wanted.
  bool prepare(std::span<const LocalPiece> pieces, bool probed);

  // Begins to copy the pieces that are on devices, as they are after what was put into the
  // stream so far. Those that the device has room for, and the ones to be copied at once,
  // point to their copies then and are at_once. Null if there are none. A copy of a list
  // that was taken before costs nothing to plan.
  Result<std::unique_ptr<DeviceShot>> take(LocalPieces& pieces, CudaStream stream);

  // Copies the blocks before the stream goes on, for a look at them later.
  Result<std::vector<DeviceProbe>> probe(std::span<const DeviceBlock> blocks,
                                         CudaStream stream);

 private:
  // Copies find a free room, or get a new one: several saves may be under way.
  class Pool {
   public:
    explicit Pool(const Device& device) : device_(device) {}
    // Makes so many, of so many bytes, as far as the device has them.
    void prepare(size_t count, int64_t bytes);
    // One for so many bytes. kNoSpace if all are taken.
    Result<SnapshotRoom*> find(int64_t bytes);

   private:
    SnapshotRoom& add();

    const Device& device_;
    std::vector<std::unique_ptr<SnapshotRoom>> rooms_;
  };
  struct Rooms {
    explicit Rooms(const Device& device)
        : at_once(device), probes(device), large(device) {}
    Pool at_once;
    Pool probes;
    SnapshotRoom large;  // of the rest
  };
  // A take() of which all pieces found room on their devices.
  struct Known {
    struct Part {
      SnapshotRoom* room;
      SnapshotPlan plan;
    };
    LocalPieces from;  // as the caller passed them
    LocalPieces to;    // as they were returned
    std::vector<Part> parts;
  };
  // What take() does on one device.
  struct Order {
    const Device& device;
    DeviceMark mark;
    CudaStream stream;
    std::span<LocalPiece> pieces;
    DeviceShot& shot;
    Known& known;
  };

  const Known* find_known(const LocalPieces& pieces) const;
  static Result<std::unique_ptr<DeviceShot>> take_known(const Known& known,
                                                        CudaStream stream);
  void remember(Known known);

  Rooms& of(const Device& device);
  Result<void> take_now(const Order& order);
  Result<void> take_later(const Order& order);
  static Result<void> take_into(SnapshotRoom& room, const Order& order,
                                std::span<LocalPiece* const> chosen);
  Result<DeviceProbe> probe_one(const Device& device,
                                std::span<const DeviceBlock> blocks, CudaStream stream);
  static Result<void> copy_to_host(const Order& order,
                                   std::span<LocalPiece* const> chosen);

  std::map<const Device*, std::unique_ptr<Rooms>> rooms_;
  std::vector<Known> known_;  // takes of one list, into different rooms
};

}  // namespace holdfast
