#include "holdfast/memory/freeze_window.h"

#include <gtest/gtest.h>

#include <cstring>

#include "holdfast/base/testing.h"
#include "holdfast/device/device_testing.h"

namespace holdfast::tests::freeze_window_test {
namespace {

constexpr int64_t kPart = FreezeWindow::kPart;

// A tensor, or a part of one, with memory of its own.
struct Held {
  Held(std::string name, Dtype dtype, const Shape& shape, const Box& box)
      : bytes(static_cast<size_t>(box.elements() * bytes_of(dtype))) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i * 37 + i / 251);
    }
    piece = make_piece({.name = std::move(name), .dtype = dtype, .shape = shape}, box,
                       bytes, Map::dense(box, bytes_of(dtype)));
  }
  Held(std::string name, Dtype dtype, const Shape& shape)
      : Held(std::move(name), dtype, shape, Box::whole(shape)) {}
  Bytes bytes;
  LocalPiece piece;
};

FreezeWindow over(std::vector<LocalPiece> pieces) {
  return FreezeWindow(LocalPieces(std::move(pieces)));
}

TEST(FreezeWindow, PartsAreNumberedThroughAllPieces) {
  Held a("a", Dtype::kF32, {10}), b("b", Dtype::kU8, {2 * kPart + 1});
  const FreezeWindow window = over({a.piece, b.piece});
  EXPECT_EQ(window.parts(), 4u);
  EXPECT_EQ(window.bytes(), 40 + 2 * kPart + 1);
  EXPECT_EQ(window.piece_of(0), 0u);
  EXPECT_EQ(window.piece_of(3), 1u);
  EXPECT_EQ(window.parts_of(1), (std::pair<size_t, size_t>(1, 4)));
}

TEST(FreezeWindow, WindowsHaveAboutAsManyBytesEach) {
  Held a("a", Dtype::kF32, {10}), b("b", Dtype::kU8, {2 * kPart + 1});
  const FreezeWindow window = over({a.piece, b.piece});
  EXPECT_EQ(window.cut(1), (std::vector<size_t>{0, 4}));
  EXPECT_EQ(window.cut(2), (std::vector<size_t>{0, 2, 4}));
  EXPECT_EQ(window.cut(3), (std::vector<size_t>{0, 2, 3, 4}));
  EXPECT_EQ(window.cut(5), (std::vector<size_t>{0, 2, 2, 3, 3, 4}));
  for (size_t windows = 1; windows < 9; ++windows) {
    const std::vector<size_t> firsts = window.cut(windows);
    ASSERT_EQ(firsts.size(), windows + 1);
    for (size_t k = 0; k < windows; ++k) {
      EXPECT_LE(window.bytes(firsts[k], firsts[k + 1]),
                window.bytes() / static_cast<int64_t>(windows) + 1 + kPart);
    }
  }
}

TEST(FreezeWindow, AWindowOfNothingHasNoParts) {
  const FreezeWindow window = over({});
  EXPECT_EQ(window.parts(), 0u);
  EXPECT_EQ(window.cut(2), (std::vector<size_t>{0, 0, 0}));
}

TEST(FreezeWindow, EveryFlippedBitIsSeenNamedAndMended) {
  Held held("w", Dtype::kBf16, {3, 5});  // the last word is half a word
  FreezeWindow window = over({held.piece});
  const Bytes good = held.bytes;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    ASSERT_OK(window.open(0, 1));
    held.bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ASSERT_EQ(*window.close(), (std::vector<size_t>{0}));
    const auto found = window.find(0, window.sealed(0));
    ASSERT_OK(found);
    const auto mended = window.mend(0, window.sealed(0));
    ASSERT_OK(mended);
    ASSERT_EQ(mended->size(), 1u);
    EXPECT_EQ(mended->front().bits, fmt::format("bit {}", bit % 16));
    const auto element = static_cast<int64_t>(bit / 16);
    EXPECT_EQ(mended->front().index, (std::vector<int64_t>{element / 5, element % 5}));
    EXPECT_EQ(found->front().index, mended->front().index);
    ASSERT_EQ(held.bytes, good);
  }
}

TEST(FreezeWindow, OnlyTheOpenPartsAreLookedAt) {
  Held held("w", Dtype::kF32, {kPart});  // four parts
  FreezeWindow window = over({held.piece});
  ASSERT_OK(window.open(1, 3));
  EXPECT_TRUE(window.close()->empty());
  held.bytes[10] ^= std::byte{1};
  held.bytes[static_cast<size_t>(3 * kPart)] ^= std::byte{1};
  EXPECT_TRUE(window.close()->empty());
  held.bytes[static_cast<size_t>(3 * kPart - 1)] ^= std::byte{0x40};
  EXPECT_EQ(*window.close(), (std::vector<size_t>{2}));
  const auto mended = window.mend(2, window.sealed(2));
  ASSERT_OK(mended);
  EXPECT_EQ(mended->front().index, (std::vector<int64_t>{3 * kPart / 4 - 1}));
}

TEST(FreezeWindow, TwoWordsAreNotMendedByTheSealButByTheBytesOfAReplica) {
  Held held("w", Dtype::kF32, {100}), other("w", Dtype::kF32, {100});
  FreezeWindow window = over({held.piece}), replica = over({other.piece});
  const auto digest = window.open(0, 1);
  EXPECT_EQ(*digest, *replica.open(0, 1));
  held.bytes[3] ^= std::byte{1};
  held.bytes[200] ^= std::byte{1};
  const Bytes bad = held.bytes;
  EXPECT_TRUE(window.find(0, window.sealed(0))->empty());
  EXPECT_ERROR(window.mend(0, window.sealed(0)), ErrorCode::kCorrupt);
  EXPECT_EQ(held.bytes, bad);
  EXPECT_NE(*digest, *window.open(0, 1));
  EXPECT_ERROR(window.write(0, ByteView(bad).first(4)), ErrorCode::kInvalid);
  const auto changed = window.write(0, *replica.read(0));
  ASSERT_OK(changed);
  EXPECT_EQ(changed->size(), 2u);
  EXPECT_EQ(held.bytes, other.bytes);
}

TEST(FreezeWindow, TheOrderOfTheMemoryDoesNotMatter) {
  const Box box{{4, 8}, {2, 8}};  // a part of a tensor, once in rows and once in columns
  Held rows("w", Dtype::kF32, {8, 8}, box), columns("w", Dtype::kF32, {8, 8}, box);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 6; ++c) {
      std::memcpy(columns.bytes.data() + (c * 4 + r) * 4,
                  rows.bytes.data() + (r * 6 + c) * 4, 4);
    }
  }
  columns.piece.map.strides[0] = 4;
  columns.piece.map.strides[1] = 16;
  FreezeWindow one = over({rows.piece}), two = over({columns.piece});
  EXPECT_EQ(*one.open(0, 1), *two.open(0, 1));
  columns.bytes[(5 * 4 + 3) * 4] ^= std::byte{2};  // row 3, column 5 of the box
  EXPECT_EQ(*two.close(), (std::vector<size_t>{0}));
  const auto mended = two.mend(0, *one.seal(0));
  ASSERT_OK(mended);
  EXPECT_EQ(mended->front().index, (std::vector<int64_t>{7, 7}));
  EXPECT_EQ(*one.seal(0), *two.seal(0));
}

// The stream of the training runs last, so that what does not wait for it is too early.
TEST(FreezeWindow, AFlipOnADeviceIsMendedBehindTheWorkOfTheTraining) {
  FakeCuda cuda(First::kOurs);
  const std::unique_ptr<Device> device = Device::open(cuda, 0).value();
  const CudaStream training = cuda.new_stream();
  const ByteSpan tensor = cuda.new_tensor(3 * kPart);
  LocalPiece piece = whole_piece("w", tensor, {std::ssize(tensor)});
  piece.device = device.get();
  FreezeWindow window = over({piece});
  cuda.set(training, tensor, std::byte{7});  // an update that has not run yet
  ASSERT_OK(window.wait_for(training));
  ASSERT_OK(window.open(0, 3));
  EXPECT_TRUE(window.close()->empty());
  cuda.set(training, tensor.subspan(kPart + 5, 1), std::byte{3});
  ASSERT_OK(window.wait_for(training));
  EXPECT_EQ(*window.close(), (std::vector<size_t>{1}));
  const auto mended = window.mend(1, window.sealed(1));
  ASSERT_OK(mended);
  EXPECT_EQ(mended->front().index, (std::vector<int64_t>{kPart + 5}));
  EXPECT_EQ(mended->front().bits, "bit 2");
  EXPECT_EQ(tensor[kPart + 5], std::byte{7});
}

}  // namespace
}  // namespace holdfast::tests::freeze_window_test
