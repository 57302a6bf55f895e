// Copies the tensors of CUDA devices for a save.
//
// If the device has enough free memory, the tensors are copied inside it. Training's
// stream waits for these copies, a few milliseconds in each save, and nothing that
// training does afterwards can tear them. If the device has too little, the tensors are
// copied straight into the staging ring while the next forward and backward run, and
// the saver makes training's stream wait before the update (ShardWriter::make_wait). No
// thread waits for the device in either case.
//
// Pieces with `at_once` for which the device has no memory are copied to the host while
// save() waits: that is slow but correct. Every allocation of more than a few MiB
// leaves some of the device's memory free, because training may still need it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "holdfast/base/shared_list.h"
#include "holdfast/memory/device_snapshot.h"

namespace holdfast {

// The device copies of one save. Used by one thread at a time.
class DeviceShot {
 public:
  // Devices whose tensors are not copied inside the device: a shard writer copies them
  // straight into the staging ring.
  std::span<const Device* const> by_ring() const { return by_ring_; }

 private:
  friend class DeviceRooms;
  std::vector<std::unique_ptr<DeviceSnapshot>> snapshots_;
  std::vector<const Device*> by_ring_;
  std::vector<Bytes> in_host_;  // copies on the host, where the device had no room
};

// A block of a device's memory of at most a few KiB.
struct DeviceBlock {
  const Device* device = nullptr;
  ByteView memory;
};

// Copies of blocks of one device, in the memory of that device.
struct DeviceProbe {
  std::unique_ptr<DeviceSnapshot> snapshot;
  std::vector<ByteView> copies;  // one for each block; empty if it is on another device
};

// The memory that a saver uses on each device, kept between saves. Only the training
// thread calls it; other threads may destroy the objects that it returns.
class DeviceRooms {
 public:
  // Allocates memory for copies of these pieces, so that the first save need not do it.
  // Returns false if some device has too little: its tensors then go straight into the
  // staging ring. If `probed`, memory to probe those tensors is allocated instead.
  bool prepare(std::span<const LocalPiece> pieces, bool probed);

  // Begins to copy the pieces that are on devices, as they are after the work that the
  // stream has been given so far. Afterwards each piece that was copied points to its
  // copy and is at_once; pieces that go straight into the staging ring are unchanged.
  // Returns null if no piece is on a device. Plans are kept, so copying the same list
  // again is cheap.
  Result<std::unique_ptr<DeviceShot>> take(LocalPieces& pieces, CudaStream stream);

  // Copies the blocks inside their devices before the stream goes on, so that their
  // bytes can be compared later.
  Result<std::vector<DeviceProbe>> probe(std::span<const DeviceBlock> blocks,
                                         CudaStream stream);

 private:
  // Rooms of one device and one purpose. Each copy uses a room of its own, because
  // several saves may be under way at the same time.
  class Pool {
   public:
    explicit Pool(const Device& device) : device_(device) {}
    // Makes `count` rooms of `bytes` bytes each, or fewer if the device has too little.
    void prepare(size_t count, int64_t bytes);
    // A free room, or a new one. Fails with kNoSpace if the pool is full and no room is
    // free. `bytes` decides how many rooms the pool may have.
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
    SnapshotRoom large;  // for the pieces that are not at_once
  };
  // The plan of a take() in which all pieces found room on their devices.
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
  std::vector<Known> known_;  // plans for one list of pieces, into different rooms
};

}  // namespace holdfast
