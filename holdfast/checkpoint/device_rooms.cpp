#include "holdfast/checkpoint/device_rooms.h"

#include <algorithm>

namespace holdfast {
namespace {

constexpr int64_t kSmall = int64_t{16} << 20;  // bytes that need no reserve
constexpr size_t kMostRooms = 16;              // small ones, of a device
constexpr size_t kSavesAtOnce = 2;  // for which there is room from the beginning

bool is_full(const Result<std::unique_ptr<DeviceSnapshot>>& snapshot) {
  return !snapshot.ok() && snapshot.error().code() == ErrorCode::kNoSpace;
}

// Numbers of the device's pieces that are, or are not, to be copied at once.
std::vector<size_t> choose(std::span<const PieceToWrite> pieces, const Device& device,
                           bool at_once) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].device == &device && pieces[i].at_once == at_once)
      chosen.push_back(i);
  }
  return chosen;
}

std::vector<PieceToWrite> pick(std::span<const PieceToWrite> pieces,
                               const std::vector<size_t>& chosen) {
  std::vector<PieceToWrite> picked;
  picked.reserve(chosen.size());
  for (const size_t i : chosen) picked.push_back(pieces[i]);
  return picked;
}

// The chosen pieces lie in the snapshot from now on.
void move_to(const DeviceSnapshot& snapshot, const std::vector<size_t>& chosen,
             std::span<PieceToWrite> pieces) {
  for (size_t i = 0; i < chosen.size(); ++i) {
    PieceToWrite& piece = pieces[chosen[i]];
    piece.memory = snapshot.pieces()[i].memory;
    piece.map = snapshot.pieces()[i].map;
    piece.at_once = true;
  }
}

}  // namespace

Result<void> DeviceShot::make_wait(CudaStream stream, ShardWriter& writer) const {
  for (const Device* device : by_ring_) {
    HOLDFAST_TRY(writer.make_wait(stream, *device));
  }
  return {};
}

// Only the training thread takes rooms, so one that is free stays so.
Result<std::unique_ptr<DeviceSnapshot>> DeviceRooms::Pool::take(
    const std::vector<PieceToWrite>& pieces, const DeviceMark& mark) {
  for (const auto& room : rooms_) {
    if (room->is_free()) return room->take(pieces, mark);
  }
  SnapshotRoom& room = add();
  const bool small = room.bytes_for(pieces) <= kSmall;
  if (rooms_.size() > (small ? kMostRooms : kSavesAtOnce)) {
    rooms_.pop_back();
    return no_space("device {}: {} saves have copies on it", device_.number(),
                    rooms_.size());
  }
  return room.take(pieces, mark);
}

SnapshotRoom& DeviceRooms::Pool::add() {
  return *rooms_.emplace_back(
      std::make_unique<SnapshotRoom>(device_, SnapshotOptions{.small = kSmall}));
}

// Taking device memory makes the device wait, so it is not left to the first save.
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

bool DeviceRooms::prepare(std::span<const PieceToWrite> pieces, int64_t probed) {
  bool enough = true;
  for (const Device* device : devices_of(pieces)) {
    Rooms& rooms = of(*device);
    const auto later = pick(pieces, choose(pieces, *device, false));
    const auto now = pick(pieces, choose(pieces, *device, true));
    const int64_t at_once = rooms.large.bytes_for(now);
    // Without a first one save() waits for the host; the large one is needed less.
    rooms.at_once.prepare(1, at_once);
    const bool roomy = rooms.large.prepare(rooms.large.bytes_for(later)).ok();
    rooms.at_once.prepare(kSavesAtOnce, at_once);
    if (roomy) continue;
    enough = false;
    rooms.probes.prepare(2 * kSavesAtOnce, std::ssize(later) * probed);  // two a save
  }
  return enough;
}

Result<std::unique_ptr<DeviceShot>> DeviceRooms::take(std::span<PieceToWrite> pieces,
                                                      CudaStream stream) {
  const std::vector<const Device*> devices = devices_of(pieces);
  if (devices.empty()) return std::unique_ptr<DeviceShot>();
  auto shot = std::make_unique<DeviceShot>();
  for (const Device* device : devices) {
    const Order order{.device = *device,
                      .mark = HOLDFAST_TRY(device->mark(stream)),
                      .stream = stream,
                      .pieces = pieces,
                      .shot = *shot};
    HOLDFAST_TRY(take_now(order));
    HOLDFAST_TRY(take_later(order));
  }
  return shot;
}

Result<void> DeviceRooms::take_now(const Order& order) {
  const std::vector<size_t> now = choose(order.pieces, order.device, true);
  if (now.empty()) return {};
  auto snapshot = of(order.device).at_once.take(pick(order.pieces, now), order.mark);
  if (is_full(snapshot)) return copy_to_host(order, now);
  return keep(order, now, HOLDFAST_TRY(std::move(snapshot)));
}

Result<void> DeviceRooms::take_later(const Order& order) {
  const std::vector<size_t> later = choose(order.pieces, order.device, false);
  if (later.empty()) return {};
  auto snapshot = of(order.device).large.take(pick(order.pieces, later), order.mark);
  if (!is_full(snapshot)) return keep(order, later, HOLDFAST_TRY(std::move(snapshot)));
  order.shot.by_ring_.push_back(&order.device);
  return order.device.follow(order.mark);
}

Result<void> DeviceRooms::keep(const Order& order, const std::vector<size_t>& chosen,
                               std::unique_ptr<DeviceSnapshot> snapshot) {
  HOLDFAST_TRY(snapshot->make_wait(order.stream));
  move_to(*snapshot, chosen, order.pieces);
  order.shot.snapshots_.push_back(std::move(snapshot));
  return {};
}

// The chosen pieces are the host's from now on.
Result<void> DeviceRooms::copy_to_host(const Order& order,
                                       const std::vector<size_t>& chosen) {
  int64_t total = 0;
  for (const size_t i : chosen) total += order.pieces[i].bytes();
  Bytes copies(static_cast<size_t>(total));
  ByteSpan room = copies;
  HOLDFAST_TRY(order.device.follow(order.mark));
  for (const size_t i : chosen) {
    PieceToWrite& piece = order.pieces[i];
    const ByteSpan copy = room.first(static_cast<size_t>(piece.bytes()));
    HOLDFAST_TRY(read_piece(piece, 0, copy));
    piece.memory = copy;
    piece.map = Map::dense(piece.box, bytes_of(piece.dtype));
    piece.device = nullptr;
    room = room.subspan(copy.size());
  }
  order.shot.in_host_.push_back(std::move(copies));
  return {};
}

Result<std::vector<std::unique_ptr<DeviceSnapshot>>> DeviceRooms::probe(
    const std::vector<PieceToWrite>& pieces, CudaStream stream) {
  std::vector<std::unique_ptr<DeviceSnapshot>> snapshots;
  for (const Device* device : devices_of(pieces)) {
    const DeviceMark mark = HOLDFAST_TRY(device->mark(stream));
    snapshots.push_back(HOLDFAST_TRY(of(*device).probes.take(pieces, mark)));
    HOLDFAST_TRY(snapshots.back()->make_wait(stream));
  }
  return snapshots;
}

}  // namespace holdfast
