// Tests Device, snapshots, pinned rings, staging from devices and restoring to them,
// with a fake driver that runs streams in the worst order that is allowed.
#include <gtest/gtest.h>

#include <atomic>

#include "holdfast/base/testing.h"
#include "holdfast/device/device.h"
#include "holdfast/device/device_testing.h"
#include "holdfast/device/device_upload.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/memory/device_snapshot.h"
#include "holdfast/shard/shard_writer.h"

namespace holdfast::device_shard_test {
namespace {

constexpr int64_t kBlock = 4096;

void fill_random(ByteSpan bytes, uint64_t seed) {
  for (std::byte& byte : bytes) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(seed >> 56);
  }
}

// A matrix of u16 inside a larger one, by rows or by columns. It is never contiguous.
BoxMemory inner_matrix(int64_t rows, int64_t columns, bool transposed) {
  BoxMemory place{.box = {{0, rows}, {0, columns}}, .element_bytes = 2, .map = {}};
  place.map.offset = 6;
  place.map.strides[0] = transposed ? 2 : 2 * (columns + 3);
  place.map.strides[1] = transposed ? 2 * (rows + 3) : 2;
  return place;
}

size_t bytes_around(const BoxMemory& place) {
  return static_cast<size_t>(
      range_of(place.map, place.box.shape(), place.element_bytes).last + 10);
}

class DeviceTest : public ::testing::TestWithParam<First> {
 protected:
  void TearDown() override { device_ = nullptr; }

  // A whole u8 tensor in device memory.
  LocalPiece piece_of(ByteSpan tensor) {
    LocalPiece piece = whole_piece("w", tensor, {std::ssize(tensor)});
    piece.device = device_.get();
    return piece;
  }
  static std::vector<LocalPiece*> pointers(std::vector<LocalPiece>& pieces) {
    std::vector<LocalPiece*> all;
    for (LocalPiece& piece : pieces) all.push_back(&piece);
    return all;
  }
  Bytes content(const LocalPiece& piece) {
    Bytes bytes(static_cast<size_t>(piece.bytes()));
    gather(piece.place(), piece.memory, 0, bytes);
    return bytes;
  }

  FakeCuda cuda_{GetParam()};
  std::unique_ptr<Device> device_ = Device::open(cuda_, 0).value();
  CudaStream training_ = cuda_.new_stream();
};

INSTANTIATE_TEST_SUITE_P(All, DeviceTest,
                         ::testing::Values(First::kOurs, First::kTrainings),
                         [](const auto& first) {
                           return first.param == First::kOurs ? "OursFirst"
                                                              : "TrainingFirst";
                         });

TEST_P(DeviceTest, MemoryIsKnownByItsAddress) {
  Devices devices(cuda_);
  Bytes host(100);
  EXPECT_EQ(devices.of(host).value(), nullptr);
  EXPECT_EQ(devices.of({}).value(), nullptr);
  const ByteSpan one = cuda_.new_tensor(100, 1);
  Device* const device = devices.of(one).value();
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(device->number(), 1);
  EXPECT_EQ(devices.of(one.subspan(50)).value(), device);
  EXPECT_ERROR(devices.of(ByteView(one.data(), 200)), ErrorCode::kInvalid);
}

// The caller names one stream for all devices, although it belongs to only one of them.
TEST_P(DeviceTest, ForAStreamOfAnotherDeviceTheDefaultOneStands) {
  const ByteSpan tensor = cuda_.new_tensor(100);
  const CudaStream elsewhere = cuda_.new_stream(1);
  cuda_.set(nullptr, tensor, std::byte{1});
  const std::vector<LocalPiece> pieces{piece_of(tensor)};
  ASSERT_OK(follow_stream(devices_of(pieces), elsewhere));
  Bytes read(tensor.size());
  ASSERT_OK(device_->read(pieces[0].place(), tensor, 0, read));
  EXPECT_EQ(read, Bytes(tensor.size(), std::byte{1}));
  ASSERT_OK(device_->make_wait(elsewhere, device_->mark().value()));
  EXPECT_EQ(cuda_.waits_of(nullptr), 1);
  EXPECT_EQ(cuda_.waits_of(elsewhere), 0);
  cuda_.run_all();
}

TEST_P(DeviceTest, WindowsOfStridedBoxesAreReadAndWrittenAsOnTheHost) {
  for (const bool transposed : {false, true}) {
    const BoxMemory place = inner_matrix(5, 7, transposed);
    const ByteSpan tensor = cuda_.new_tensor(bytes_around(place));
    const ByteSpan other = cuda_.new_tensor(tensor.size());
    fill_random(tensor, 1);
    Bytes expected(tensor.size());
    const int64_t size = place.box.elements() * 2;
    for (int64_t first = 0; first < size; ++first) {
      for (int64_t last = first + 1; last <= size; last += 3) {
        Bytes by_host(static_cast<size_t>(last - first)), by_device(by_host.size());
        gather(place, tensor, first, by_host);
        ASSERT_OK(device_->read(place, tensor, first, by_device));
        ASSERT_EQ(by_device, by_host) << first << " " << last;
        scatter(place, expected, first, by_host);
        ASSERT_OK(device_->write(place, other, first, by_host));
      }
    }
    EXPECT_TRUE(std::ranges::equal(other, expected));
  }
}

TEST_P(DeviceTest, RowsAtOneDistanceAreOneCopy) {
  const BoxMemory place = inner_matrix(500, 7, false);
  const ByteSpan tensor = cuda_.new_tensor(bytes_around(place));
  Bytes into(500 * 7 * 2);
  ASSERT_OK(device_->read(place, tensor, 0, into));
  EXPECT_EQ(cuda_.copies, 1);
}

TEST_P(DeviceTest, ASnapshotHoldsWhatTheStreamHadWrittenAndNothingLater) {
  SnapshotRoom room(*device_);
  const ByteSpan tensor = cuda_.new_tensor(1000), other = cuda_.new_tensor(3);
  cuda_.set(training_, tensor, std::byte{1});
  cuda_.set(training_, other, std::byte{2});
  const DeviceMark now = device_->mark(training_).value();
  std::vector<LocalPiece> pieces{piece_of(tensor), piece_of(other)};
  {
    const auto snapshot = room.take(pointers(pieces), now).value();
    EXPECT_FALSE(snapshot->done().value());
    ASSERT_OK(snapshot->make_wait(training_));
    cuda_.set(training_, tensor, std::byte{9});
    cuda_.set(training_, other, std::byte{9});
    ASSERT_OK(snapshot->wait());
    EXPECT_TRUE(snapshot->done().value());
    cuda_.run_all();
    EXPECT_EQ(content(pieces[0]), Bytes(1000, std::byte{1}));
    EXPECT_EQ(content(pieces[1]), Bytes(3, std::byte{2}));
    EXPECT_EQ(tensor[0], std::byte{9});
  }
}

// The pieces are copied by one kernel launch if the driver has the kernel, and one by
// one otherwise.
TEST_P(DeviceTest, ASnapshotOfManyPiecesIsTheSameByAKernelAndWithout) {
  for (const bool kernel : {true, false}) {
    cuda_.has_copier = kernel;
    const auto device = Device::open(cuda_, 0).value();
    SnapshotRoom room(*device);
    std::vector<LocalPiece> pieces;
    for (size_t size = 0; size < 300; ++size) {
      const ByteSpan tensor = cuda_.new_tensor(size + 16);
      fill_random(tensor, size);
      // Some pieces begin at an address that is not a multiple of 16.
      pieces.push_back(piece_of(tensor.subspan(size % 7 == 0 ? 3 : 0)));
      pieces.back().device = device.get();
    }
    cuda_.launches = 0;
    std::vector<LocalPiece> copies = pieces;
    const auto snapshot =
        room.take(pointers(copies), device->mark(training_).value()).value();
    ASSERT_OK(snapshot->wait());
    for (size_t i = 0; i < pieces.size(); ++i) {
      ASSERT_NE(copies[i].memory.data(), pieces[i].memory.data());
      ASSERT_EQ(content(copies[i]), content(pieces[i])) << i;
    }
    EXPECT_EQ(cuda_.launches, kernel ? 1 : 0);
  }
}

TEST_P(DeviceTest, ASnapshotMakesStridedPiecesDense) {
  SnapshotRoom room(*device_);
  const BoxMemory place = inner_matrix(5, 7, true);
  const ByteSpan tensor = cuda_.new_tensor(bytes_around(place));
  fill_random(tensor, 1);
  std::vector<LocalPiece> pieces{
      make_piece({.name = "w", .dtype = Dtype::kI16, .shape = {5, 7}}, place.box,
                 tensor, place.map)};
  pieces[0].device = device_.get();
  const Bytes before = content(pieces[0]);
  const auto snapshot =
      room.take(pointers(pieces), device_->mark(training_).value()).value();
  ASSERT_OK(snapshot->wait());
  EXPECT_EQ(pieces[0].map, Map::dense(place.box, 2));
  EXPECT_EQ(content(pieces[0]), before);
}

TEST_P(DeviceTest, ASnapshotLeavesTheReserveFreeAndTakesItsMemoryOnce) {
  SnapshotRoom room(*device_, {.reserve = 1000});
  std::vector<LocalPiece> tensors{piece_of(cuda_.new_tensor(2000))};
  const std::vector<LocalPiece*> pieces = pointers(tensors);
  const DeviceMark now = device_->mark(training_).value();
  cuda_.free_memory = 2048 + 999;
  EXPECT_ERROR(room.take(pieces, now), ErrorCode::kNoSpace);
  cuda_.free_memory = 2048 + 1000;
  ASSERT_OK(room.prepare(snapshot_bytes(pieces)));
  {
    const auto snapshot = room.take(pieces, now).value();
    EXPECT_ERROR(room.take(pieces, now), ErrorCode::kNoSpace);
    EXPECT_FALSE(room.give_back());
  }
  ASSERT_OK(room.take(pieces, now));
  EXPECT_EQ(cuda_.allocations, 1);
  EXPECT_TRUE(room.give_back());
  EXPECT_EQ(cuda_.free_memory, 2048 + 1000);
}

TEST_P(DeviceTest, ASnapshotThatFailsLeavesTheRoomFree) {
  SnapshotRoom room(*device_);
  std::vector<LocalPiece> tensors{piece_of(cuda_.new_tensor(10)),
                                  piece_of(cuda_.new_tensor(10))};
  const std::vector<LocalPiece*> pieces = pointers(tensors);
  const std::byte* const before = tensors[0].memory.data();
  const DeviceMark now = device_->mark(training_).value();
  cuda_.copies_until_failure = 1;
  EXPECT_ERROR(room.take(pieces, now), ErrorCode::kIo);
  EXPECT_EQ(tensors[0].memory.data(), before);
  cuda_.copies_until_failure = 100;
  EXPECT_OK(room.take(pieces, now));
}

TEST_P(DeviceTest, ARingIsPinnedBlockByBlockAndLetGoAgain) {
  {
    StagingRing ring({.bytes = 5 * kBlock, .block = kBlock, .pinner = device_.get()});
    std::vector<ByteSpan> blocks;
    for (int64_t i = 0; i < ring.blocks(); ++i) blocks.push_back(ring.take_block());
    EXPECT_FALSE(ring.try_take_block().has_value());
    const LocalPiece piece = piece_of(cuda_.new_tensor(kBlock));
    for (const ByteSpan block : blocks) {
      ASSERT_OK(device_->read(piece.place(), piece.memory, 0, block));
    }
    EXPECT_EQ(cuda_.unpinned_copies, 0);
    ASSERT_OK(device_->mark()->wait());
    for (const ByteSpan block : blocks) ring.give_back(block);
  }
  cuda_.pins_left = 2;  // the fake aborts at the end if one is left pinned
  StagingRing ring({.bytes = 5 * kBlock, .block = kBlock, .pinner = device_.get()});
  for (int i = 0; i < 5; ++i) static_cast<void>(ring.take_block());
}

class StagingTest : public DeviceTest {
 protected:
  // Pieces in device memory between two in host memory, and the bytes that the file
  // should have.
  void make(std::vector<size_t> sizes) {
    expected_ = Bytes(100, std::byte{'h'});
    shard_.header = expected_;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const ByteSpan memory = i % 3 == 0 ? ByteSpan(host_.emplace_back(sizes[i]))
                                         : cuda_.new_tensor(sizes[i]);
      fill_random(memory, i + 1);
      LocalPiece piece = piece_of(memory);
      if (i % 3 == 0) piece.device = nullptr;
      shard_.pieces.edit().push_back(piece);
      shard_.offsets.edit().push_back(std::ssize(expected_));
      expected_.insert(expected_.end(), memory.begin(), memory.end());
    }
  }
  ByteSpan memory_of(size_t piece) { return shard_.pieces[piece].memory; }
  void expect_all_blocks_back(StagingRing& ring) {
    std::vector<ByteSpan> blocks;
    for (int64_t i = 0; i < ring.blocks(); ++i) blocks.push_back(ring.take_block());
    for (const ByteSpan block : blocks) ring.give_back(block);
  }

  MemoryEnv env_{1};
  std::deque<Bytes> host_;
  ShardToWrite shard_;
  Bytes expected_;
};

INSTANTIATE_TEST_SUITE_P(All, StagingTest,
                         ::testing::Values(First::kOurs, First::kTrainings),
                         [](const auto& first) {
                           return first.param == First::kOurs ? "OursFirst"
                                                              : "TrainingFirst";
                         });

TEST_P(StagingTest, PiecesOfDeviceAndHostAreOneFileThroughAnyRing) {
  make({5000, 1, 20000, 0, 0, 4096 - 100, 7, 60000, 3});
  for (const int64_t blocks : {2, 3, 40}) {
    for (const bool pinned : {false, true}) {
      StagingRing ring({.bytes = blocks * kBlock,
                        .block = kBlock,
                        .pinner = pinned ? device_.get() : nullptr});
      ShardWriter writer(ring, shard_);
      std::jthread stager([&] { EXPECT_OK(writer.stage()); });
      const Path path = fmt::format("shard-{}-{}", blocks, pinned);
      EXPECT_OK(writer.write(env_, path));
      stager.join();
      EXPECT_EQ(env_.read_file(path).value(), expected_);
      expect_all_blocks_back(ring);
    }
  }
}

TEST_P(StagingTest, AnUpdateThatWasMadeToWaitDoesNotReachTheFile) {
  make({10, 9000, 30000, 10, 5000, 20000});
  cuda_.set(training_, memory_of(1), std::byte{1});  // the last before the save
  const size_t at = static_cast<size_t>(shard_.offsets[1]);
  std::fill_n(expected_.begin() + static_cast<std::ptrdiff_t>(at), 9000, std::byte{1});
  StagingRing ring({.bytes = 3 * kBlock, .block = kBlock, .pinner = device_.get()});
  ASSERT_OK(device_->follow(device_->mark(training_).value()));
  ShardWriter writer(ring, shard_);
  std::jthread stager([&] { EXPECT_OK(writer.stage()); });
  std::jthread trainer([&] {
    for (size_t i = 0; i < shard_.pieces.size(); ++i) {
      EXPECT_OK(writer.make_wait(training_, i));
      if (shard_.pieces[i].device != nullptr) {
        cuda_.set(training_, memory_of(i), std::byte{0xff});
      }
    }
    EXPECT_OK(writer.make_wait(training_, *device_));
  });
  EXPECT_OK(writer.write(env_, "shard"));
  stager.join();
  trainer.join();
  cuda_.run_all();
  EXPECT_EQ(env_.read_file("shard").value(), expected_);
  EXPECT_EQ(memory_of(5)[0], std::byte{0xff});
}

TEST_P(StagingTest, ADeviceThatFailsEndsBothHalvesAndWhoWaits) {
  make({10, 9000, 30000, 10, 5000, 20000});
  for (const int good : {0, 1, 5, 12}) {
    StagingRing ring({.bytes = 3 * kBlock, .block = kBlock, .pinner = device_.get()});
    ShardWriter writer(ring, shard_);
    cuda_.copies_until_failure = good;
    std::jthread stager([&] { EXPECT_ERROR(writer.stage(), ErrorCode::kIo); });
    std::jthread trainer(
        [&] { EXPECT_ERROR(writer.make_wait(training_, *device_), ErrorCode::kIo); });
    EXPECT_ERROR(writer.write(env_, fmt::format("shard-{}", good)), ErrorCode::kIo);
    stager.join();
    trainer.join();
    expect_all_blocks_back(ring);
  }
}

TEST_P(StagingTest, ASnapshotIsStagedLikeTheTensors) {
  make({10, 9000, 30000, 10, 5000});
  SnapshotRoom room(*device_);
  ShardToWrite copy = shard_;
  std::vector<LocalPiece*> of_device;
  for (LocalPiece& piece : copy.pieces.edit()) {
    if (piece.device != nullptr) of_device.push_back(&piece);
  }
  const auto snapshot = room.take(of_device, device_->mark(training_).value()).value();
  ASSERT_OK(snapshot->make_wait(training_));
  for (const size_t i : {1U, 2U, 4U})
    cuda_.set(training_, memory_of(i), std::byte{0xff});
  StagingRing ring({.bytes = 3 * kBlock, .block = kBlock, .pinner = device_.get()});
  ShardWriter writer(ring, copy);
  std::jthread stager([&] { EXPECT_OK(writer.stage()); });
  EXPECT_OK(writer.write(env_, "shard"));
  stager.join();
  EXPECT_EQ(env_.read_file("shard").value(), expected_);
}

// The device seals its pieces before they go through the ring, if it has the kernel. So a
// bit that flips in the ring changes the file, but not the seal.
TEST_P(StagingTest, TheDeviceSealsItsPiecesBeforeTheyAreCopied) {
  make({10, 9000, 30000, 10, 5000});
  for (const bool kernel : {true, false}) {
    cuda_.has_sealer = kernel;
    const auto device = Device::open(cuda_, 0).value();
    EXPECT_EQ(device->seal_error().has_value(), !kernel);
    for (LocalPiece& piece : shard_.pieces.edit()) {
      if (piece.device != nullptr) piece.device = device.get();
    }
    StagingRing ring({.bytes = 3 * kBlock, .block = kBlock, .pinner = device.get()});
    ShardWriter writer(ring, shard_);
    std::jthread stager([&] { EXPECT_OK(writer.stage()); });
    const auto strike = [](int64_t offset, ByteSpan bytes) {
      if (offset == 3 * kBlock) bytes[100] ^= std::byte{1};  // in piece 2
    };
    const auto written =
        writer.write(env_, fmt::format("shard-{}", kernel), {.strike = strike});
    stager.join();
    ASSERT_OK(written);
    for (size_t i = 0; i < shard_.pieces.size(); ++i) {
      const bool damaged = i == 2 && !kernel;
      EXPECT_EQ(written->seals[i] == seal_bytes(memory_of(i), 0), !damaged) << i;
    }
  }
  EXPECT_GT(cuda_.seals, 0);
}

TEST_P(DeviceTest, PiecesAreSealedAlikeByADeviceAndByTheHost) {
  const BoxMemory place = inner_matrix(50, 70, false);
  const BoxMemory turned = inner_matrix(50, 70, true);  // too short rows for the kernel
  const ByteSpan tensor =
      cuda_.new_tensor(std::max(bytes_around(place), bytes_around(turned)));
  fill_random(tensor, 1);
  const Tensor whole{.name = "w", .dtype = Dtype::kI16, .shape = {50, 70}};
  std::vector<LocalPiece> pieces{make_piece(whole, place.box, tensor, place.map),
                                 piece_of(cuda_.new_tensor(0)),
                                 piece_of(cuda_.new_tensor(5001))};
  pieces.push_back(make_piece(whole, turned.box, tensor, turned.map));
  fill_random(pieces[2].memory, 2);
  std::vector<LocalPiece> on_host = pieces;
  for (LocalPiece& piece : pieces) piece.device = device_.get();
  for (LocalPiece& piece : on_host) piece.device = nullptr;
  const SealsOnDevices by_device(pieces);
  EXPECT_EQ(by_device.has(0) && by_device.has(1) && by_device.has(2), true);
  EXPECT_FALSE(by_device.has(3));
  EXPECT_EQ(seals_of(pieces).value(), seals_of(on_host).value());
}

TEST_P(DeviceTest, RowsAreCopiedInsideTheDeviceByOneLaunch) {
  const ByteSpan from = cuda_.new_tensor(4096), to = cuda_.new_tensor(2048);
  fill_random(from, 1);
  const StridedCopy rows{.from = 64,
                         .to = 0,
                         .run = 32,
                         .loops = 2,
                         .loop = {{{.count = 3, .from_stride = 1024, .to_stride = 512},
                                   {.count = 5, .from_stride = 128, .to_stride = 64}}}};
  Bytes expected(to.begin(), to.end());
  run_copy(rows, from, expected);
  Device::InsideCopies copies(*device_);
  copies.add(rows, from, to);
  cuda_.launches = 0;
  ASSERT_OK(copies.run());
  cuda_.run_all();
  EXPECT_EQ(cuda_.launches, 1);
  EXPECT_TRUE(std::ranges::equal(to, expected));
}

TEST_P(DeviceTest, WhatIsUploadedFromSeveralThreadsIsThere) {
  const BoxMemory place = inner_matrix(100, 300, true);
  const ByteSpan tensor = cuda_.new_tensor(bytes_around(place));
  const auto size = static_cast<size_t>(place.box.elements() * 2);
  Bytes stream(size);
  fill_random(stream, 3);
  StagingRing ring({.bytes = 3 * kBlock, .block = kBlock, .pinner = device_.get()});
  DeviceUpload upload(ring);
  {
    constexpr size_t kParts = 4;
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kParts; ++i) {
      const size_t first = size * i / kParts + i,
                   last = size * (i + 1) / kParts + i + 1;
      threads.emplace_back([&, first, last = i + 1 == kParts ? size : last] {
        Bytes part(stream.begin() + static_cast<std::ptrdiff_t>(first),
                   stream.begin() + static_cast<std::ptrdiff_t>(last));
        EXPECT_OK(
            upload.put(*device_, place, tensor, static_cast<int64_t>(first), part));
        std::fill(part.begin(), part.end(), std::byte{});  // it was copied
      });
    }
  }
  ASSERT_OK(upload.finish());
  Bytes seen(size);
  gather(place, tensor, 0, seen);
  EXPECT_EQ(seen, stream);
}

TEST_P(DeviceTest, AnUploadThatFailsSaysSo) {
  StagingRing ring({.bytes = 3 * kBlock, .block = kBlock, .pinner = device_.get()});
  const LocalPiece piece = piece_of(cuda_.new_tensor(5 * kBlock));
  const ByteSpan memory = piece.memory.first(5 * kBlock);
  DeviceUpload upload(ring);
  cuda_.copies_until_failure = 3;
  EXPECT_ERROR(upload.put(*device_, piece.place(), memory, 0, Bytes(5 * kBlock)),
               ErrorCode::kIo);
}

TEST(CudaDriver, IsLoadedWhereThereIsOne) {
  const auto driver = load_cuda_driver();
  if (driver.ok()) {
    EXPECT_GT((*driver)->device_count().value(), 0);
    int host = 0;
    EXPECT_EQ((*driver)->device_of(address_of(&host)).value(), std::nullopt);
  } else {
    EXPECT_ERROR(driver, ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace holdfast::device_shard_test
