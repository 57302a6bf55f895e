#include "holdfast/device/device_seals.h"

#include <algorithm>
#include <limits>

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

// Runs are cut into parts of this size, so that all blocks of a launch have about the same
// work.
constexpr int64_t kPart = int64_t{4} << 20;
// A block of 256 threads takes one row at a time. For shorter rows the host is as fast.
constexpr int64_t kShortRow = 64;
constexpr int64_t kMostRuns = 4096;  // that one call of add() makes
constexpr size_t kAnywhere = std::numeric_limits<int64_t>::max();

int64_t outer_runs(const StridedCopy& runs) {
  int64_t count = 1;
  for (int k = 0; k + 1 < runs.loops; ++k) {
    const int64_t times = runs.loop[static_cast<size_t>(k)].count;
    if (count > kMostRuns / std::max<int64_t>(times, 1)) return kMostRuns + 1;
    count *= times;
  }
  return count;
}

}  // namespace

StridedCopy plan_seal(const Shape& shape, Dtype dtype, const Box& box, const Map& map) {
  const Box whole = Box::whole(shape);
  const Map canonical = Map::dense(whole, bytes_of(dtype)).narrowed(whole, box);
  return plan_copy(map, canonical, box.shape(), bytes_of(dtype));
}

bool DeviceSeals::add(size_t seal, const StridedCopy& runs, ByteView memory) {
  if (!device_.can_seal()) return false;
  if (runs.loops > 0 && runs.run < kShortRow) return false;
  if (outer_runs(runs) > kMostRuns) return false;
  if (runs.run == 0) {
    shares_.push_back({.seal = seal, .bytes = 0});
    runs_.push_back({.rows = 0});
    return true;
  }
  check_copy(runs, memory.size(), kAnywhere);
  add_loops(seal, runs, 0, address_of(memory.data() + runs.from),
            static_cast<uint64_t>(runs.to));
  return true;
}

// The innermost loop becomes the rows of one run.
void DeviceSeals::add_loops(size_t seal, const StridedCopy& runs, int depth,
                            DeviceAddress from, uint64_t to) {
  if (depth == runs.loops) {
    return add_run(seal, {.from = from, .offset = to, .bytes = runs.run});
  }
  const StridedCopy::Loop& loop = runs.loop[static_cast<size_t>(depth)];
  if (depth == runs.loops - 1) {
    return add_rows(seal, {.from = from,
                           .offset = to,
                           .bytes = runs.run,
                           .rows = loop.count,
                           .from_pitch = loop.from_stride,
                           .offset_pitch = loop.to_stride});
  }
  for (int64_t i = 0; i < loop.count; ++i) {
    add_loops(seal, runs, depth + 1,
              from + static_cast<DeviceAddress>(i * loop.from_stride),
              to + static_cast<uint64_t>(i * loop.to_stride));
  }
}

void DeviceSeals::add_rows(size_t seal, const CudaSealRun& rows) {
  const int64_t at_once = std::max<int64_t>(kPart / rows.bytes, 1);
  for (int64_t row = 0; row < rows.rows; row += at_once) {
    CudaSealRun part = rows;
    part.from += static_cast<DeviceAddress>(row * rows.from_pitch);
    part.offset += static_cast<uint64_t>(row * rows.offset_pitch);
    part.rows = std::min(at_once, rows.rows - row);
    if (part.rows == 1) {
      add_run(seal, part);
      continue;
    }
    runs_.push_back(part);
    shares_.push_back(
        {.seal = seal, .bytes = static_cast<uint64_t>(part.rows * part.bytes)});
  }
}

void DeviceSeals::add_run(size_t seal, const CudaSealRun& run) {
  for (int64_t at = 0; at < run.bytes; at += kPart) {
    const int64_t bytes = std::min(kPart, run.bytes - at);
    runs_.push_back({.from = run.from + static_cast<DeviceAddress>(at),
                     .offset = run.offset + static_cast<uint64_t>(at),
                     .bytes = bytes});
    shares_.push_back({.seal = seal, .bytes = static_cast<uint64_t>(bytes)});
  }
}

int64_t DeviceSeals::bytes_of_sums() const {
  return std::ssize(runs_) * CudaSealRun::kSums *
         static_cast<int64_t>(sizeof(CudaSealSum));
}

Result<void> DeviceSeals::prepare(size_t count) const {
  return runs_.empty() ? Result<void>()
                       : device_.prepare_seal_rooms(count, bytes_of_sums());
}

Result<std::unique_ptr<DeviceSums>> DeviceSeals::begin() const {
  SealRoom& room = *HOLDFAST_TRY(device_.take_seal_room(bytes_of_sums()));
  std::unique_ptr<DeviceSums> sums(new DeviceSums(device_, room, shares_));
  HOLDFAST_TRY(device_.seal(runs_, room));
  sums->made_ = HOLDFAST_TRY(device_.mark());
  return sums;
}

DeviceSums::~DeviceSums() {
  // Without a mark of its own, the work that was begun is before a mark that is made now.
  if (!made_.has_value()) {
    if (Result<DeviceMark> now = device_.mark(); now.ok()) made_ = *std::move(now);
  }
  if (made_.has_value()) static_cast<void>(made_->wait());
  device_.give_back(room_);
}

Result<std::vector<Seal>> DeviceSums::wait() {
  HOLDFAST_TRY(made_->wait());
  const auto* sum = reinterpret_cast<const CudaSealSum*>(room_.on_host());
  std::vector<Seal> seals;
  for (const Share& share : shares_) {
    if (seals.size() <= share.seal) seals.resize(share.seal + 1);
    Seal& seal = seals[share.seal];
    for (int64_t i = 0; i < CudaSealRun::kSums; ++i, ++sum) {
      for (size_t lane = 0; lane < seal.lanes.size(); ++lane) {
        seal.lanes[lane] += sum->lanes[lane];
      }
    }
    seal.bytes += share.bytes;
  }
  return seals;
}

}  // namespace holdfast
