// Exchanges between ranks whose pieces lie on devices.
#include <gtest/gtest.h>

#include "holdfast/device/device_testing.h"
#include "holdfast/exchange/exchange.h"
#include "holdfast/exchange/live_state_testing.h"

namespace holdfast::tests {
namespace {

class ExchangeDevicesTest : public ::testing::Test {
 protected:
  // Moves the old pieces of a rank from the host to a device.
  static void put_on_device(ExchangeTask& task, FakeCuda& cuda,
                            const Device& device) {
    for (LocalPiece& piece : task.old.edit()) {
      const ByteSpan memory = cuda.new_tensor(piece.memory.size());
      std::ranges::copy(piece.memory, memory.begin());
      piece.memory = memory;
      piece.device = &device;
    }
  }

  std::unique_ptr<Env> env_ = make_posix_env();
};

TEST_F(ExchangeDevicesTest, ADeviceIsCutAgainInsideAndBetweenRanks) {
  // Two ranks hold halves of the columns on a device each, and shall hold halves of the
  // rows; the third one gets a replica of the upper half.
  const Tensor tensor = tensor_of("w", {80, 1000});
  RankLayout before({tensor}, 3), after({tensor}, 3);
  before.put(0, Box{{0, 80}, {0, 500}}, 0);
  before.put(0, Box{{0, 80}, {500, 1000}}, 1);
  after.put(0, Box{{0, 40}, {0, 1000}}, 0);
  after.put(0, Box{{40, 80}, {0, 1000}}, 1);
  after.put(0, Box{{0, 40}, {0, 1000}}, 2);
  for (const ExchangeMode mode : {ExchangeMode::kShadow, ExchangeMode::kWindowed}) {
    for (const CarrierCase& way : all_carriers()) {
      LiveState state(before.build(), after.build(), Topology::uniform(1));
      FakeCuda cuda;
      const auto device = Device::open(cuda, 0).value();
      LocalNetwork network(*env_, 3);
      on_ranks(3, [&](int rank) {
        const auto r = static_cast<size_t>(rank);
        DeviceStorage storage(*device);
        ExchangeTask task = state.task_of(rank);
        put_on_device(task, cuda, *device);
        ExchangeOptions options = way.options;
        options.mode = mode;
        const auto outcome =
            exchange(*env_, network.endpoint(rank), task, storage, options);
        EXPECT_OK(outcome);
        cuda.run_all();
        EXPECT_TRUE(outcome.ok() && state.is_right(r, *outcome));
      });
    }
  }
}

// Training still works on the old pieces when the call is made. A seal of what they were
// before would not be that of what is moved.
TEST_F(ExchangeDevicesTest, OldPiecesOfADeviceAreSealedAfterTheWorkOfTheCallersStream) {
  RankLayout before({tensor_of("w", {300})}, 2), after({tensor_of("w", {300})}, 2);
  before.put(0, Box{{0, 300}}, 0);
  after.put(0, Box{{0, 300}}, 1);
  LiveState state(before.build(), after.build(), Topology::uniform(1));
  std::ranges::fill(state.values[0], std::byte{7});
  FakeCuda cuda(First::kOurs);
  const auto device = Device::open(cuda, 0).value();
  const CudaStream stream = cuda.new_stream();
  LocalNetwork network(*env_, 2);
  on_ranks(2, [&](int rank) {
    DeviceStorage storage(*device);
    ExchangeTask task = state.task_of(rank);
    for (LocalPiece& piece : task.old.edit()) {
      piece.memory = cuda.new_tensor(piece.memory.size());
      piece.device = device.get();
      cuda.set(stream, piece.memory, std::byte{7});
    }
    const auto outcome =
        exchange(*env_, network.endpoint(rank), task, storage, {.stream = stream});
    EXPECT_OK(outcome);
    cuda.run_all();
    EXPECT_TRUE(outcome.ok() && state.is_right(static_cast<size_t>(rank), *outcome));
  });
}

// Old memory has other bytes as soon as it is released.
class OverwrittenStorage : public DeviceStorage {
 public:
  using DeviceStorage::DeviceStorage;
  void release(const LocalPiece& old) override {
    std::ranges::fill(old.memory, std::byte{0x5a});
  }
};

TEST_F(ExchangeDevicesTest, OldPiecesOfADeviceAreReleasedAfterTheirCopies) {
  const std::vector<Tensor> tensors{tensor_of("w", {300}), tensor_of("v", {500, 3})};
  RankLayout before(tensors, 2), after(tensors, 2);
  for (TensorId t = 0; t < 2; ++t) {
    before.put(t, Box::whole(tensors[t].shape), 0);
    after.put(t, Box::whole(tensors[t].shape), 1);
  }
  LiveState state(before.build(), after.build(), Topology::uniform(1));
  FakeCuda cuda;
  const auto device = Device::open(cuda, 0).value();
  LocalNetwork network(*env_, 2);
  on_ranks(2, [&](int rank) {
    OverwrittenStorage storage(*device);
    ExchangeTask task = state.task_of(rank);
    put_on_device(task, cuda, *device);
    const auto outcome = exchange(*env_, network.endpoint(rank), task, storage,
                                  {.mode = ExchangeMode::kWindowed});
    EXPECT_OK(outcome);
    EXPECT_TRUE(outcome.ok() && state.is_right(static_cast<size_t>(rank), *outcome));
  });
}

}  // namespace
}  // namespace holdfast::tests
