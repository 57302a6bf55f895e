#include "holdfast/memory/device_rooms.h"

#include <algorithm>

#include "holdfast/memory/sample_lines.h"
#include "holdfast/memory/seals_on_devices.h"

namespace holdfast {
namespace {

// Rooms of up to this many bytes may use memory that is otherwise left free for
// training.
constexpr int64_t kSmall = int64_t{16} << 20;
// A pool of small rooms has at most kMostRooms of them, a pool of larger rooms at most
// kSavesAtOnce. prepare() makes rooms for kSavesAtOnce saves.
constexpr size_t kMostRooms = 16;
constexpr size_t kSavesAtOnce = 2;
constexpr size_t kMostKnown = 8;  // plans that are kept for one list of pieces

bool is_full(const Result<void>& taken) {
  return !taken.ok() && taken.error().code() == ErrorCode::kNoSpace;
}

// The pieces that are on the device and have this value of at_once.
template <typename Piece>
std::vector<Piece*> choose(std::span<Piece> pieces, const Device& device,
                           bool at_once) {
  std::vector<Piece*> chosen;
  chosen.reserve(pieces.size());
  for (Piece& piece : pieces) {
    if (piece.device == &device && piece.at_once == at_once) chosen.push_back(&piece);
  }
  return chosen;
}

// How many bytes of a room the lines of the pieces use at most (sample_lines.h).
int64_t probe_bytes(std::span<const LocalPiece* const> pieces) {
  int64_t bytes = 0;
  for (const LocalPiece* piece : pieces) bytes += piece->bytes();
  const int64_t lines =
      std::min(bytes / (SampleLines::kBlock * SampleLines::kTurns) + 1,
               SampleLines::kMostDeviceLines);
  return std::ssize(pieces) * SnapshotPlaces::room_of(SampleLines::kBlock) +
         lines * SnapshotPlaces::room_of(SampleLines::kLine);
}

}  // namespace

// Only the training thread takes rooms, so a room that is free here is still free when
// the caller takes it.
Result<SnapshotRoom*> DeviceRooms::Pool::find(int64_t bytes) {
  for (const auto& room : rooms_) {
    if (room->is_free()) return room.get();
  }
  if (rooms_.size() >= (bytes <= kSmall ? kMostRooms : kSavesAtOnce)) {
    return no_space(
        "device {}: all {} rooms for copies are in use; expected a free one",
        device_.number(), rooms_.size());
  }
  return &add();
}

SnapshotRoom& DeviceRooms::Pool::add() {
  return *rooms_.emplace_back(
      std::make_unique<SnapshotRoom>(device_, SnapshotOptions{.small = kSmall}));
}

// Allocating device memory makes the device wait, so it is done before the first save.
// Failures are ignored: a save that finds no room copies another way.
void DeviceRooms::Pool::prepare(size_t count, int64_t bytes) {
  if (bytes == 0) return;
  while (rooms_.size() < count) add();
  for (size_t i = 0; i < count; ++i) static_cast<void>(rooms_[i]->prepare(bytes));
}

DeviceRooms::Rooms& DeviceRooms::of(const Device& device) {
  std::unique_ptr<Rooms>& rooms = rooms_[&device];
  if (rooms == nullptr) rooms = std::make_unique<Rooms>(device);
  return *rooms;
}

bool DeviceRooms::prepare(std::span<const LocalPiece> pieces, bool probed) {
  bool enough = true;
  for (const Device* device : devices_of(pieces)) {
    Rooms& rooms = of(*device);
    const auto later = choose(pieces, *device, false);
    const int64_t at_once = snapshot_bytes(choose(pieces, *device, true));
    // A first room for at_once pieces comes before the large room: without it, every
    // save copies these pieces to the host while training waits. The second room comes
    // last.
    rooms.at_once.prepare(1, at_once);
    const bool roomy = rooms.large.prepare(snapshot_bytes(later)).ok();
    rooms.at_once.prepare(kSavesAtOnce, at_once);
    if (roomy) continue;
    enough = false;
    if (!probed) continue;
    // A save probes twice: inside save() and before the update.
    rooms.probes.prepare(2 * kSavesAtOnce, probe_bytes(later));
  }
  prepare_seals(pieces, kSavesAtOnce);
  return enough;
}

Result<std::unique_ptr<DeviceShot>> DeviceRooms::take(LocalPieces& pieces,
                                                      CudaStream stream) {
  if (const Known* const known = find_known(pieces)) {
    auto shot = HOLDFAST_TRY(take_known(*known, stream));
    pieces = known->to;
    return shot;
  }
  const std::vector<const Device*> devices = devices_of(pieces);
  if (devices.empty()) return std::unique_ptr<DeviceShot>();
  auto shot = std::make_unique<DeviceShot>();
  Known known{.from = pieces, .to = {}, .parts = {}};
  for (const Device* device : devices) {
    const Order order{.device = *device,
                      .mark = HOLDFAST_TRY(device->mark(stream)),
                      .stream = stream,
                      .pieces = pieces.edit(),
                      .shot = *shot,
                      .known = known};
    HOLDFAST_TRY(take_now(order));
    HOLDFAST_TRY(take_later(order));
  }
  known.to = pieces;
  if (shot->by_ring_.empty() && shot->in_host_.empty()) remember(std::move(known));
  return shot;
}

const DeviceRooms::Known* DeviceRooms::find_known(const LocalPieces& pieces) const {
  const auto fits = [&](const Known& known) {
    return known.from.shares_with(pieces) &&
           std::ranges::all_of(known.parts, [](const Known::Part& part) {
             return part.room->is_ready_for(part.plan);
           });
  };
  const auto found = std::ranges::find_if(known_, fits);
  return found == known_.end() ? nullptr : &*found;
}

Result<std::unique_ptr<DeviceShot>> DeviceRooms::take_known(const Known& known,
                                                            CudaStream stream) {
  auto shot = std::make_unique<DeviceShot>();
  std::optional<DeviceMark> mark;
  for (const Known::Part& part : known.parts) {
    const Device& device = part.plan.copies.device();
    if (!mark.has_value() || &mark->device() != &device) {
      mark = HOLDFAST_TRY(device.mark(stream));
    }
    auto snapshot = HOLDFAST_TRY(part.room->take(part.plan, *mark));
    HOLDFAST_TRY(snapshot->make_wait(stream));
    shot->snapshots_.push_back(std::move(snapshot));
  }
  return shot;
}

// Forgets plans for another list of pieces, and all plans when there are too many: some
// are for memory that a room no longer has.
void DeviceRooms::remember(Known known) {
  std::erase_if(known_, [&](const Known& old) {
    return !old.from.shares_with(known.from) || known_.size() >= kMostKnown;
  });
  known_.push_back(std::move(known));
}

Result<void> DeviceRooms::take_now(const Order& order) {
  const auto now = choose(order.pieces, order.device, true);
  if (now.empty()) return {};
  const Result<SnapshotRoom*> room = of(order.device).at_once.find(snapshot_bytes(now));
  const Result<void> taken =
      room.ok() ? take_into(**room, order, now) : Result<void>(room.error());
  return is_full(taken) ? copy_to_host(order, now) : taken;
}

Result<void> DeviceRooms::take_later(const Order& order) {
  const auto later = choose(order.pieces, order.device, false);
  if (later.empty()) return {};
  const Result<void> taken = take_into(of(order.device).large, order, later);
  if (!is_full(taken)) return taken;
  order.shot.by_ring_.push_back(&order.device);
  return order.device.follow(order.mark);
}

Result<void> DeviceRooms::take_into(SnapshotRoom& room, const Order& order,
                                    std::span<LocalPiece* const> chosen) {
  SnapshotPlan plan = HOLDFAST_TRY(room.plan(chosen));
  auto snapshot = HOLDFAST_TRY(room.take(plan, order.mark));
  HOLDFAST_TRY(snapshot->make_wait(order.stream));
  point_to_copies(plan.room, chosen);
  for (LocalPiece* piece : chosen) piece->at_once = true;
  order.shot.snapshots_.push_back(std::move(snapshot));
  order.known.parts.push_back({.room = &room, .plan = std::move(plan)});
  return {};
}

// Waits until the pieces are copied to the host. Afterwards they point to these copies.
Result<void> DeviceRooms::copy_to_host(const Order& order,
                                       std::span<LocalPiece* const> chosen) {
  int64_t total = 0;
  for (const LocalPiece* piece : chosen) total += piece->bytes();
  Bytes copies(static_cast<size_t>(total));
  ByteSpan room = copies;
  HOLDFAST_TRY(order.device.follow(order.mark));
  for (LocalPiece* piece : chosen) {
    const ByteSpan copy = room.first(static_cast<size_t>(piece->bytes()));
    HOLDFAST_TRY(read_piece(*piece, 0, copy));
    piece->memory = copy;
    piece->map = Map::dense(piece->box, bytes_of(piece->tensor->dtype));
    piece->device = nullptr;
    room = room.subspan(copy.size());
  }
  order.shot.in_host_.push_back(std::move(copies));
  return {};
}

Result<std::vector<DeviceProbe>> DeviceRooms::probe(std::span<const DeviceBlock> blocks,
                                                    CudaStream stream) {
  std::vector<DeviceProbe> probes;
  for (const Device* device : devices_of(blocks)) {
    probes.push_back(HOLDFAST_TRY(probe_one(*device, blocks, stream)));
  }
  return probes;
}

Result<DeviceProbe> DeviceRooms::probe_one(const Device& device,
                                           std::span<const DeviceBlock> blocks,
                                           CudaStream stream) {
  int64_t bytes = 0;
  for (const DeviceBlock& block : blocks) {
    if (block.device == &device)
      bytes += SnapshotPlaces::room_of(std::ssize(block.memory));
  }
  DeviceProbe probe;
  probe.copies.resize(blocks.size());
  const auto fill = [&](Device::InsideCopies& copies, SnapshotPlaces room) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      const ByteView memory = blocks[i].memory;
      if (blocks[i].device != &device) continue;
      const ByteSpan copy = room.next(std::ssize(memory));
      copies.add(plain_bytes(std::ssize(memory)), memory, copy);
      probe.copies[i] = copy;
    }
  };
  const DeviceMark mark = HOLDFAST_TRY(device.mark(stream));
  SnapshotRoom* const room = HOLDFAST_TRY(of(device).probes.find(bytes));
  probe.snapshot =
      HOLDFAST_TRY(room->take(HOLDFAST_TRY(room->plan(bytes, fill)), mark));
  HOLDFAST_TRY(probe.snapshot->make_wait(stream));
  return probe;
}

}  // namespace holdfast
