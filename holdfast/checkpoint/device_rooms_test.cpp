// Tests saves of tensors on devices. They are copied inside the device if it has room,
// otherwise through the ring, and always in the order of training's stream.
#include "holdfast/memory/device_rooms.h"

#include <gtest/gtest.h>

#include "holdfast/checkpoint/channel.h"
#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/events.h"
#include "holdfast/checkpoint/layout_agreement.h"
#include "holdfast/device/device_testing.h"
#include "holdfast/env/collecting_sink.h"

namespace holdfast::tests {
namespace {

// A tensor on a device. The first parameter says whether the device has room for a copy
// of it.
struct OnADevice : ::testing::TestWithParam<std::tuple<bool, First>> {
  OnADevice() {
    if (!has_room()) cuda.free_memory = 1 << 20;
    state.pieces.edit()[0].device = device.get();
    cuda.set(training, tensor, std::byte{1});
  }
  bool has_room() const { return std::get<0>(GetParam()); }

  static LocalState state_of(ByteSpan memory) {
    return make_local_state(std::vector{whole_piece("w", memory, {std::ssize(memory)})})
        .value();
  }
  std::unique_ptr<Saver> open(bool incremental = false) {
    SaverOptions options = test_options();
    options.guard = Guard::kSample;
    options.background = true;
    options.direct = false;
    options.incremental = incremental;
    return Saver::open(env, "run", nullptr, options).value();
  }
  Bytes saved() {
    Bytes memory(tensor.size());
    const LocalState into = state_of(memory);
    EXPECT_OK(restore(env, "run", into));
    return memory;
  }

  MemoryEnv env{1};
  FakeCuda cuda{std::get<1>(GetParam())};
  std::unique_ptr<Device> device = Device::open(cuda, 0).value();
  CudaStream training = cuda.new_stream();
  ByteSpan tensor = cuda.new_tensor(100'000);
  LocalState state = state_of(tensor);
};

INSTANTIATE_TEST_SUITE_P(Rooms, OnADevice,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(First::kOurs,
                                                              First::kTrainings)));

TEST_P(OnADevice, AnUpdateAfterSettleIsNotInTheCheckpoint) {
  const auto saver = open();
  ASSERT_OK(saver->prepare(state));
  for (int64_t step = 1; step < 4; ++step) {
    const SaveHandle handle =
        saver->save({.step = step, .state = &state, .stream = training}).value();
    EXPECT_EQ(saver->may_tear(), !has_room());
    EXPECT_EQ(saver->settle({}, training).torn, std::vector<std::string>());
    cuda.set(training, tensor, static_cast<std::byte>(step + 1));
    ASSERT_OK(handle.durable());
    EXPECT_EQ(saved(), Bytes(tensor.size(), static_cast<std::byte>(step)));
  }
  EXPECT_OK(saver->close());
}

TEST_P(OnADevice, AWriteBeforeSettleTearsOnlyWhatIsNotCopiedYet) {
  const auto saver = open();
  const SaveHandle handle =
      saver->save({.step = 1, .state = &state, .stream = training}).value();
  cuda.set(training, tensor, std::byte{9});
  saver->settle({}, training);
  if (has_room()) {
    ASSERT_OK(handle.durable());
    EXPECT_EQ(saved(), Bytes(tensor.size(), std::byte{1}));
  } else {
    EXPECT_ERROR(handle.durable(), ErrorCode::kUnavailable);
    EXPECT_TRUE(handle.is_torn());
  }
}

// An incremental save reads the tensor to see whether it has changed. It must read it
// after the update.
TEST_P(OnADevice, AnUpdateThatIsStillToRunIsInAnIncrementalSave) {
  const auto saver = open(true);
  for (int64_t step = 1; step < 4; ++step) {
    cuda.set(training, tensor, static_cast<std::byte>(step));
    if (step == 1) cuda.run_all();
    const SaveHandle handle =
        saver->save({.step = step, .state = &state, .stream = training}).value();
    saver->settle({}, training);
    ASSERT_OK(handle.durable());
    EXPECT_EQ(saved(), Bytes(tensor.size(), static_cast<std::byte>(step)));
  }
  EXPECT_OK(saver->close());
}

TEST_P(OnADevice, WhatSettlesByTheWayMakesTrainingsStreamWait) {
  const auto saver = open();
  const auto save = [&](int64_t step) {
    EXPECT_OK(saver->save({.step = step, .state = &state, .stream = training}));
  };
  save(1);
  save(2);
  ASSERT_OK(saver->prepare(state));
  save(3);
  saver->propose(4);
  EXPECT_EQ(cuda.waits_of(nullptr), 0);
}

TEST_P(OnADevice, WorkThatIsStillToRunDoesNotOverwriteWhatIsRestored) {
  {
    const auto saver = open();
    ASSERT_OK(saver->save({.step = 1, .state = &state, .stream = training}));
    saver->settle({}, training);
    ASSERT_OK(saver->close());
  }
  cuda.set(training, tensor, std::byte{7});
  ASSERT_OK(restore(env, "run", state, nullptr, {.stream = training}));
  EXPECT_TRUE(std::ranges::equal(tensor, Bytes(tensor.size(), std::byte{1})));
  cuda.run_all();
  EXPECT_TRUE(std::ranges::equal(tensor, Bytes(tensor.size(), std::byte{1})));
}

// The tensor of rank 0 gets its value only when the stream runs; that of rank 1 has the
// same value already.
TEST_P(OnADevice, ReplicasAreComparedAsTheyAreAfterTheStream) {
  const ByteSpan other = cuda.new_tensor(tensor.size());
  std::ranges::fill(other, std::byte{1});
  run_ranks(env, 2, [&](int rank, Transport& transport) {
    LayoutAgreement layouts(env, &transport, std::chrono::seconds(10));
    std::vector<LocalPiece> held{state.pieces[0]};
    held[0].memory = rank == 0 ? tensor : other;
    EXPECT_OK(layouts.agree(LocalPieces(held), true, training));
  });
}

// Saves of a tensor that is marked at_once, on a device with little or much free
// memory.
struct AtOnceOnADevice : ::testing::TestWithParam<First> {
  static constexpr int64_t kReserve = int64_t{1} << 30;
  static constexpr int64_t kLarge = int64_t{20} << 20;

  // Saves a tensor of `size` bytes a few times and overwrites it before settle(). Each
  // save must hold the value that the tensor had in save().
  void save_and_overwrite(int64_t size, int64_t free) {
    cuda.free_memory = free;
    const ByteSpan tensor = cuda.new_tensor(static_cast<size_t>(size));
    LocalState state = OnADevice::state_of(tensor);
    state.pieces.edit()[0].device = device.get();
    state.pieces.edit()[0].at_once = true;
    SaverOptions options = test_options();
    options.guard = Guard::kSample;
    options.background = true;
    options.direct = false;
    const auto saver = Saver::open(env, "run", nullptr, options).value();
    ASSERT_OK(saver->prepare(state));
    for (int64_t step = 1; step < 4; ++step) {
      cuda.set(training, tensor, static_cast<std::byte>(step));
      const SaveHandle handle =
          saver->save({.step = step, .state = &state, .stream = training}).value();
      cuda.set(training, tensor, std::byte{9});
      EXPECT_FALSE(saver->may_tear());
      saver->settle({}, training);
      ASSERT_OK(handle.durable());
      Bytes memory(tensor.size());
      ASSERT_OK(restore(env, "run", OnADevice::state_of(memory)));
      EXPECT_TRUE(memory == Bytes(tensor.size(), static_cast<std::byte>(step)));
    }
    left = cuda.free_memory;
    EXPECT_OK(saver->close());
  }

  MemoryEnv env{1};
  FakeCuda cuda{GetParam()};
  std::unique_ptr<Device> device = Device::open(cuda, 0).value();
  CudaStream training = cuda.new_stream();
  int64_t left = 0;  // free bytes of the device after the saves
};

INSTANTIATE_TEST_SUITE_P(All, AtOnceOnADevice,
                         ::testing::Values(First::kOurs, First::kTrainings));

TEST_P(AtOnceOnADevice, SmallCopiesNeedNoReserve) {
  save_and_overwrite(1000, 1 << 20);
  EXPECT_GT(cuda.allocations, 0);
}

// For the sums of the seals of two saves. They are small and may use the reserve.
constexpr int kRoomsForSums = 2;

TEST_P(AtOnceOnADevice, LargeCopiesLeaveTheReserveFree) {
  save_and_overwrite(kLarge, kReserve + kLarge + kLarge / 2);
  EXPECT_EQ(cuda.allocations, 1 + kRoomsForSums);
  EXPECT_GE(left, kReserve);
}

TEST_P(AtOnceOnADevice, WhatFindsNoRoomIsCopiedIntoTheHostsMemory) {
  save_and_overwrite(kLarge, kReserve + kLarge - 1);
  EXPECT_EQ(cuda.allocations, kRoomsForSums);
}

TEST_P(AtOnceOnADevice, TheSameOfWhatIsSmall) {
  save_and_overwrite(1000, 10);
  EXPECT_EQ(cuda.allocations, 0);
}

// Planning the copies takes time in which training waits, so it is done once for the
// same list of tensors.
TEST_P(OnADevice, ACopyOfTheSameListIsPlannedOnce) {
  if (!has_room()) return;
  const LocalPieces list = state.pieces;
  DeviceRooms rooms;
  const auto take = [&](LocalPieces pieces) {
    cuda.set(training, tensor, std::byte{5});
    const auto shot = rooms.take(pieces, training).value();
    cuda.set(training, tensor, std::byte{6});
    cuda.run_all();
    EXPECT_EQ(pieces[0].memory[7], std::byte{5});
    return pieces;
  };
  const LocalPieces first = take(list);
  EXPECT_TRUE(take(list).shares_with(first));
  LocalPieces other = list;
  other.edit()[0].memory = cuda.new_tensor(tensor.size());
  std::ranges::fill(tensor, std::byte{0});
  LocalPieces copied = other;
  const auto shot = rooms.take(copied, training).value();
  cuda.run_all();
  EXPECT_FALSE(copied.shares_with(first));
  EXPECT_EQ(copied[0].memory[7], other[0].memory[7]);
  // The room on the device is in use, so the pieces stay where they are and go through
  // the ring.
  LocalPieces late = other;
  const auto second = rooms.take(late, training).value();
  EXPECT_EQ(late[0].memory.data(), other[0].memory.data());
}

TEST(DeviceSeals, ThatAreMissingAreToldOnceForEachDevice) {
  for (const bool kernel : {true, false}) {
    MemoryEnv env{1};
    FakeCuda cuda{First::kOurs};
    cuda.has_sealer = kernel;
    const auto device = Device::open(cuda, 0).value();
    const CudaStream training = cuda.new_stream();
    CollectingSink events;
    SaverOptions options = test_options();
    options.events = &events;
    const auto saver = Saver::open(env, "run", nullptr, options).value();
    for (int64_t step = 1; step < 3; ++step) {
      const auto bytes = static_cast<size_t>(10'000 * step);
      LocalState state = OnADevice::state_of(cuda.new_tensor(bytes));
      state.pieces.edit()[0].device = device.get();
      const auto saved =
          saver->save({.step = step, .state = &state, .stream = training});
      ASSERT_OK(saved);
      ASSERT_OK(saved->durable());
    }
    std::vector<std::string> reasons;
    for (const EventRecord& record : events.records()) {
      const auto told = event_as<DeviceSealsMissing>(record);
      if (told.ok()) reasons.push_back(told->reason);
    }
    EXPECT_EQ(reasons, std::vector<std::string>(kernel ? 0 : 1, "no compiler"));
  }
}

// Allocating memory makes the device wait, so prepare() does it instead of the saves.
TEST_P(OnADevice, NoSaveTakesMemoryThatPrepareCouldHaveTaken) {
  const auto saver = open();
  ASSERT_OK(saver->prepare(state));
  const int prepared = cuda.allocations;
  for (int64_t step = 1; step < 3; ++step) {
    const SaveHandle handle =
        saver->save({.step = step, .state = &state, .stream = training}).value();
    saver->settle({}, training);
    ASSERT_OK(handle.durable());
  }
  EXPECT_EQ(cuda.allocations, prepared);
}

}  // namespace
}  // namespace holdfast::tests
