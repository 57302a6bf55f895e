// Functions for device_check.py: save and restore tensors on a GPU, given torch's own
// pointers and CUDA streams. A call that fails returns -2, and probe_error() says why.
#include <optional>
#include <string>
#include <thread>

#include "holdfast/device/device_upload.h"
#include "holdfast/env/file.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/memory/device_snapshot.h"
#include "holdfast/shard/shard_writer.h"

#define PROBE extern "C" __attribute__((visibility("default")))

namespace {

using namespace holdfast;

constexpr int kFailed = -2;
constexpr size_t kHeader = 4096;

Dtype dtype_of_width(int64_t width) {
  switch (width) {
    case 2: return Dtype::kBf16;
    case 4: return Dtype::kF32;
    case 8: return Dtype::kF64;
    default: return Dtype::kU8;
  }
}

struct Probe {
  std::unique_ptr<Env> env = make_posix_env();
  std::unique_ptr<CudaDriver> driver;
  std::unique_ptr<Devices> devices;
  Device* device = nullptr;
  std::unique_ptr<StagingRing> ring;
  std::unique_ptr<SnapshotRoom> room;
  ShardToWrite shard{
      .header = Bytes(kHeader, std::byte{' '}), .pieces = {}, .offsets = {}};
  ShardToWrite copied{};  // the same shard, with the copies in the snapshot as memory
  std::unique_ptr<DeviceSnapshot> snapshot;
  std::unique_ptr<ShardWriter> writer;
  Result<void> staged;
  Result<void> written;
  double captured = 0;  // seconds
  std::jthread stager;
  std::jthread disk;
};

std::string& last_error() {
  static std::string text;
  return text;
}

int note(const Error& error) {
  last_error() = error.message();
  return kFailed;
}
int note(const Result<void>& result) { return result.ok() ? 0 : note(result.error()); }

Result<void> open(Probe& probe) {
  probe.driver = HOLDFAST_TRY(load_cuda_driver());
  probe.devices = std::make_unique<Devices>(*probe.driver);
  return {};
}

double seconds(Env& env, Instant since) {
  return std::chrono::duration<double>(env.now() - since).count();
}

Result<void> restore(Probe& probe, const char* path) {
  const auto file = HOLDFAST_TRY(probe.env->open(path, {.mode = OpenMode::kRead}));
  DeviceUpload upload(*probe.ring);
  Bytes buffer(size_t{16} << 20);
  for (size_t i = 0; i < probe.shard.pieces.size(); ++i) {
    const LocalPiece& piece = probe.shard.pieces[i];
    for (int64_t at = 0; at < piece.bytes();) {
      const int64_t size =
          std::min<int64_t>(static_cast<int64_t>(buffer.size()), piece.bytes() - at);
      const ByteSpan part = ByteSpan(buffer).first(static_cast<size_t>(size));
      HOLDFAST_TRY(file->read_at(probe.shard.offsets[i] + at, part));
      HOLDFAST_TRY(upload.put(*probe.device, piece.place(), piece.memory, at, part));
      at += size;
    }
  }
  return upload.finish();
}

// Copies the first pieces, up to `most` bytes, into the ring and drops them there.
Result<int64_t> copy_through(Probe& probe, int64_t most) {
  std::deque<std::pair<ByteSpan, DeviceMark>> under_way;
  int64_t done = 0;
  Result<void> outcome;
  const auto finish_one = [&] {
    const Result<void> waited = under_way.front().second.wait();
    probe.ring->give_back(under_way.front().first);
    under_way.pop_front();
    if (!waited.ok()) outcome = waited;
  };
  for (const LocalPiece& piece : probe.shard.pieces) {
    for (int64_t at = 0; at < piece.bytes() && done < most;) {
      if (under_way.size() >= 8) finish_one();
      const ByteSpan block = probe.ring->take_block();
      const int64_t size = std::min(probe.ring->block_bytes(), piece.bytes() - at);
      HOLDFAST_TRY(probe.device->read(piece.place(), piece.memory, at,
                                      block.first(static_cast<size_t>(size))));
      under_way.emplace_back(block, HOLDFAST_TRY(probe.device->mark()));
      at += size;
      done += size;
    }
  }
  while (!under_way.empty()) finish_one();
  HOLDFAST_TRY(outcome);
  return done;
}

}  // namespace

PROBE const char* probe_error() { return last_error().c_str(); }

// Returns null if there is no CUDA driver.
PROBE Probe* probe_open() {
  auto probe = std::make_unique<Probe>();
  if (note(open(*probe)) != 0) return nullptr;
  return probe.release();
}
PROBE void probe_close(Probe* probe) { delete probe; }

// Returns the number of the device that has this memory, or -1 for memory of the host.
// The calls that follow use that device.
PROBE int probe_device_of(Probe* probe, void* memory, int64_t bytes) {
  const auto device = probe->devices->of(
      ByteView(static_cast<std::byte*>(memory), static_cast<size_t>(bytes)));
  if (!device.ok()) return note(device.error());
  if (*device == nullptr) return -1;
  probe->device = *device;
  return probe->device->number();
}

// Makes a staging ring and waits until all of it is allocated. Returns how many
// microseconds that took.
PROBE int64_t probe_ring(Probe* probe, int64_t bytes, int64_t block, int pinned) {
  probe->ring = nullptr;
  const Instant start = probe->env->now();
  probe->ring = std::make_unique<StagingRing>(RingOptions{
      .bytes = bytes, .block = block, .pinner = pinned != 0 ? probe->device : nullptr});
  std::vector<ByteSpan> blocks;
  for (int64_t i = 0; i < probe->ring->blocks(); ++i) {
    blocks.push_back(probe->ring->take_block());
  }
  for (const ByteSpan memory : blocks) probe->ring->give_back(memory);
  return static_cast<int64_t>(1e6 * seconds(*probe->env, start));
}

PROBE void probe_clear(Probe* probe) {
  probe->shard.pieces.edit().clear();
  probe->shard.offsets.edit().clear();
}

// Adds a matrix, with strides in elements. A vector is a matrix with one row.
PROBE int probe_add(Probe* probe, void* memory, int64_t rows, int64_t columns,
                    int64_t row_stride, int64_t column_stride, int64_t width) {
  const Box box{{0, rows}, {0, columns}};
  Map map;
  map.strides[0] = row_stride * width;
  map.strides[1] = column_stride * width;
  const ByteRange range = range_of(map, box.shape(), width);
  LocalPiece piece = make_piece(
      {.name = "", .dtype = dtype_of_width(width), .shape = {rows, columns}}, box,
      ByteSpan(static_cast<std::byte*>(memory), static_cast<size_t>(range.last)), map);
  piece.device = probe->device;
  const int64_t offset = probe->shard.bytes();
  probe->shard.pieces.edit().push_back(piece);
  probe->shard.offsets.edit().push_back(offset);
  return 0;
}

static std::vector<LocalPiece*> pointers(std::vector<LocalPiece>& pieces) {
  std::vector<LocalPiece*> all;
  for (LocalPiece& piece : pieces) all.push_back(&piece);
  return all;
}

// Allocates memory for a snapshot of the pieces. Leaves `reserve` bytes of the device
// free.
PROBE int probe_prepare(Probe* probe, int64_t reserve) {
  probe->room = nullptr;
  probe->room = std::make_unique<SnapshotRoom>(*probe->device,
                                               SnapshotOptions{.reserve = reserve});
  return note(
      probe->room->prepare(snapshot_bytes(pointers(probe->shard.pieces.edit()))));
}

PROBE int probe_take(Probe* probe, CudaStream stream) {
  const auto mark = probe->device->mark(stream);
  if (!mark.ok()) return note(mark.error());
  probe->copied = probe->shard;
  auto snapshot = probe->room->take(pointers(probe->copied.pieces.edit()), *mark);
  if (!snapshot.ok()) return note(snapshot.error());
  probe->snapshot = *std::move(snapshot);
  return 0;
}
PROBE int probe_snapshot_make_wait(Probe* probe, CudaStream stream) {
  return note(probe->snapshot->make_wait(stream));
}
PROBE int probe_snapshot_wait(Probe* probe) { return note(probe->snapshot->wait()); }

// Begins to write the snapshot. If there is none, writes the tensors themselves, in the
// order of the stream.
PROBE int probe_write(Probe* probe, const char* path, CudaStream stream) {
  static_cast<void>(probe->env->remove_file(path));  // left by an earlier save
  const bool copied = probe->snapshot != nullptr;
  const ShardToWrite& shard = copied ? probe->copied : probe->shard;
  if (!copied) {
    const auto mark = probe->device->mark(stream);
    if (!mark.ok()) return note(mark.error());
    if (note(probe->device->follow(*mark)) != 0) return kFailed;
  }
  probe->writer = std::make_unique<ShardWriter>(*probe->ring, shard);
  probe->stager = std::jthread([probe, start = probe->env->now()] {
    probe->staged = probe->writer->stage();
    probe->captured = seconds(*probe->env, start);
  });
  probe->disk = std::jthread([probe, path = std::string(path)] {
    auto written = probe->writer->write(*probe->env, path);
    probe->written = written.ok() ? Result<void>() : written.error();
  });
  return 0;
}
PROBE int probe_make_wait(Probe* probe, CudaStream stream) {
  return note(probe->writer->make_wait(stream, *probe->device));
}
// Waits until the shard is staged and written. Returns how many microseconds it took
// until everything was captured.
PROBE int64_t probe_finish(Probe* probe) {
  probe->stager = {};
  probe->disk = {};
  probe->writer = nullptr;
  probe->snapshot = nullptr;
  if (note(probe->staged) != 0 || note(probe->written) != 0) return kFailed;
  return static_cast<int64_t>(1e6 * probe->captured);
}

PROBE int probe_restore(Probe* probe, const char* path) {
  return note(restore(*probe, path));
}

// Returns the number of bytes that went through the ring.
PROBE int64_t probe_copy_through(Probe* probe, int64_t most) {
  const auto done = copy_through(*probe, most);
  return done.ok() ? *done : note(done.error());
}
