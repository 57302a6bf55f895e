// Checks that the GPU computes the same seals as the host, and measures how fast.
//
//   seal_gpu [JSON]
//
// 300 tensors of 4.3 GB in all are sealed at once, and compared with the host's seals of
// the same bytes. Then 400 random runs follow, with any alignment, rows and offsets. The
// bar is that sealing takes at most 1.5 times as long as a copy of the same bytes inside
// the GPU.
#include <fmt/core.h>

#include "gpu_memory.h"
#include "holdfast/device/device_seals.h"
#include "holdfast/memory/seals_on_devices.h"

namespace holdfast {
namespace {

constexpr int kTensors = 300, kRounds = 15, kRandom = 400;
constexpr size_t kTensor = 14'333'348;  // bytes; no multiple of 16
constexpr size_t kRoom = 14'333'440;    // a multiple of 512, as torch's allocator has it
constexpr double kBar = 1.5;

LocalPiece piece_at(const Gpu& gpu, ByteSpan memory, int number) {
  const Shape shape{static_cast<int64_t>(kTensor) / 4};
  LocalPiece piece =
      whole_piece({.name = fmt::format("t{}", number), .shape = shape},
                  memory.subspan(static_cast<size_t>(number) * kRoom, kTensor));
  piece.device = gpu.device.get();
  return piece;
}

size_t shift_of(int number) { return static_cast<size_t>(number) * 4096; }

int count_wrong(std::span<const LocalPiece> pieces, const Pattern& pattern) {
  const SealsOnDevices by_gpu(pieces);
  const std::vector<Seal> seals = seals_of(pieces).value();
  int wrong = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Seal expected = seal_bytes(pattern.window(shift_of(static_cast<int>(i)), kTensor), 0);
    wrong += !by_gpu.has(i) || seals[i] != expected;
  }
  return wrong;
}

struct RandomRuns {
  StridedCopy copy;
  Seal expected;
};

RandomRuns random_runs(std::mt19937_64& random, ByteView bytes) {
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  };
  RandomRuns made;
  const int64_t rows = below(3) == 0 ? 1 + below(50) : 1;
  made.copy.from = below(1000);
  made.copy.to = below(3) == 0 ? made.copy.from % 16 + 16 * below(int64_t{1} << 33)
                               : below(int64_t{1} << 40);
  made.copy.run = rows > 1 ? 64 + below(9000) : below(200'000);
  if (rows > 1) {
    made.copy.loops = 1;
    made.copy.loop[0] = {.count = rows,
                         .from_stride = made.copy.run + below(100),
                         .to_stride = made.copy.run + below(100'000)};
  }
  for (int64_t row = 0; row < rows; ++row) {
    const auto& loop = made.copy.loop[0];
    made.expected += seal_bytes(
        bytes.subspan(static_cast<size_t>(made.copy.from + row * loop.from_stride),
                      static_cast<size_t>(made.copy.run)),
        static_cast<uint64_t>(made.copy.to + row * loop.to_stride));
  }
  return made;
}

int count_wrong_runs(const Gpu& gpu, ByteSpan memory, ByteView bytes) {
  std::mt19937_64 random(7);
  DeviceSeals work(*gpu.device);
  std::vector<Seal> expected;
  for (int i = 0; i < kRandom; ++i) {
    const RandomRuns runs = random_runs(random, bytes);
    HOLDFAST_CHECK(work.add(expected.size(), runs.copy, memory), "the GPU cannot seal");
    expected.push_back(runs.expected);
  }
  const std::vector<Seal> seals = work.begin().value()->wait().value();
  int wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) wrong += seals[i] != expected[i];
  return wrong;
}

int measure(int count, char** arguments) {
  const Gpu gpu;
  if (gpu.device->seal_error().has_value()) {
    fmt::print(stderr, "no kernel: {}\n", gpu.device->seal_error()->message());
    return 1;
  }
  const auto all = static_cast<int64_t>(kRoom) * kTensors;
  const ByteSpan memory = gpu.device->allocate(all, 0).value();
  const ByteSpan other = gpu.device->allocate(all, 0).value();
  const Pattern pattern(kTensor + shift_of(kTensors));
  std::vector<LocalPiece> pieces;
  for (int i = 0; i < kTensors; ++i) {
    pieces.push_back(piece_at(gpu, memory, i));
    gpu.write(pieces.back().memory, pattern.window(shift_of(i), kTensor));
  }
  gpu.wait();
  Report figures;
  Series wrong;
  wrong.add(count_wrong(pieces, pattern));
  wrong.values[0] += count_wrong_runs(gpu, pieces[0].memory, pattern.window(0, kTensor));
  figures.at_most("seals that are not those of the host", wrong, 0);
  const DeviceCopy copy(gpu, memory, other);
  Series sealed, copied;
  for (int round = -2; round < kRounds; ++round) {
    const double one = copy.seconds();
    const double two = gpu.seconds([&] { seals_of(pieces).value(); });
    if (round < 0) continue;  // warms up
    copied.add(one);
    sealed.add(two);
  }
  figures.show("copy of 4.3 GB inside the GPU", copied, "ms", 1e-3);
  figures.show("seals of 4.3 GB", sealed, "ms", 1e-3);
  figures.at_most("seals / copy", ratios(sealed, copied), kBar);
  return finish(figures, count, arguments);
}

}  // namespace
}  // namespace holdfast

int main(int count, char** arguments) { return holdfast::measure(count, arguments); }
