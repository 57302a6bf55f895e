#include "holdfast/state/box_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/state/layout_testing.h"

namespace holdfast::box_stream_test {
namespace {

using tests::Dice;

struct Case {
  Shape shape;
  Dtype dtype;
  Box box;
  BoxMemory memory;
  Bytes bytes;
};

Bytes random_bytes(Dice& dice, int64_t count) {
  Bytes bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice.next());
  return bytes;
}

// A random box of a random tensor, kept with its dimensions in a random order.
Case random_case(Dice& dice) {
  constexpr Dtype kDtypes[] = {Dtype::kU8, Dtype::kBf16, Dtype::kF32, Dtype::kC128};
  Case made;
  made.dtype = kDtypes[dice.below(4)];
  std::vector<int64_t> sizes;
  std::vector<Extent> extents;
  for (int64_t k = dice.below(4); k > 0; --k) {
    sizes.push_back(1 + dice.below(7));
    const int64_t lo = dice.below(sizes.back());
    extents.push_back({lo, lo + 1 + dice.below(sizes.back() - lo)});
  }
  made.shape = Shape::create(sizes).value();
  made.box = Box::create(extents).value();
  const int64_t element = bytes_of(made.dtype);
  made.memory = {.box = made.box, .element_bytes = element, .map = {}};
  int64_t stride = element;
  std::vector<int> order;
  for (int k = 0; k < made.box.rank(); ++k) {
    order.insert(order.begin() + dice.below(k + 1), k);
  }
  for (const int k : order) {
    made.memory.map.strides[static_cast<size_t>(k)] = stride;
    stride *= made.box.size(k);
    if (dice.one_in(4)) stride += element;  // a gap
  }
  made.memory.map.offset = dice.below(9);
  made.bytes = random_bytes(dice, made.memory.map.offset + stride);
  return made;
}

Bytes whole_stream(const Case& of) {
  Bytes stream(static_cast<size_t>(of.box.elements() * bytes_of(of.dtype)));
  run_copy(plan_copy(of.memory.map, Map::dense(of.box, bytes_of(of.dtype)),
                     of.box.shape(), bytes_of(of.dtype)),
           of.bytes, stream);
  return stream;
}

// Cuts [0, size) at random bytes. Some of the windows are empty.
std::vector<std::pair<size_t, size_t>> random_windows(Dice& dice, size_t size) {
  std::vector<std::pair<size_t, size_t>> windows;
  for (size_t first = 0; first < size;) {
    const auto step = static_cast<size_t>(dice.below(40));
    windows.emplace_back(first, std::min(step, size - first));
    first += windows.back().second;
  }
  return windows;
}

RC_GTEST_PROP(BoxStream, WindowsAddUpToTheStream, (uint64_t seed)) {
  Dice dice(seed);
  const Case made = random_case(dice);
  const Bytes want = whole_stream(made);
  Bytes seen(want.size());
  for (const auto& [first, size] : random_windows(dice, want.size())) {
    gather(made.memory, made.bytes, static_cast<int64_t>(first),
           ByteSpan(seen).subspan(first, size));
  }
  RC_ASSERT(seen == want);
}

RC_GTEST_PROP(BoxStream, ScatterUndoesGatherAndTouchesNothingElse, (uint64_t seed)) {
  Dice dice(seed);
  const Case made = random_case(dice);
  const Bytes stream = whole_stream(made);
  Bytes memory = made.bytes;
  // Overwrites the bytes of the box, and only those.
  run_copy(plan_copy(Map::dense(made.box, bytes_of(made.dtype)), made.memory.map,
                     made.box.shape(), bytes_of(made.dtype)),
           Bytes(stream.size()), memory);
  for (const auto& [first, size] : random_windows(dice, stream.size())) {
    scatter(made.memory, memory, static_cast<int64_t>(first),
            ByteView(stream).subspan(first, size));
  }
  RC_ASSERT(memory == made.bytes);
}

RC_GTEST_PROP(BoxStream, SealsOfWindowsAddUpToTheBoxs, (uint64_t seed)) {
  Dice dice(seed);
  const Case made = random_case(dice);
  const Bytes stream = whole_stream(made);
  Seal sum;
  for (const auto& [first, size] : random_windows(dice, stream.size())) {
    sum += seal_stream(made.shape, made.dtype, made.box, static_cast<int64_t>(first),
                       ByteView(stream).subspan(first, size));
  }
  RC_ASSERT(sum ==
            seal_box(made.shape, made.dtype, made.box, made.memory.map, made.bytes));
}

TEST(BoxStreamDeathTest, AWindowBeyondTheStreamIsABug) {
  const BoxMemory memory{.box = {{0, 2}}, .element_bytes = 4, .map = {}};
  Bytes bytes(8), into(5);
  EXPECT_DEATH(gather(memory, bytes, 4, into), "window \\[4, 9\\) of a stream of 8");
}

}  // namespace
}  // namespace holdfast::box_stream_test
