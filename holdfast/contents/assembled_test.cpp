#include "holdfast/contents/assembled.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "holdfast/base/testing.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {
namespace {

// A tensor of 6 x 4 bytes, 0 to 23.
std::shared_ptr<const Contents> small_contents() {
  Bytes bytes(24);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  std::vector<AssembledTensor> tensors(1);
  tensors[0].tensor = {.name = "t", .dtype = Dtype::kU8, .shape = {6, 4}};
  tensors[0].parts.push_back(part_of_bytes(std::move(bytes)));
  return std::make_shared<const Contents>(
      assemble("memory", std::move(tensors), Object()).value());
}

std::vector<int> read_all(const Contents& contents, TensorId tensor, size_t window) {
  Bytes bytes(static_cast<size_t>(contents.collection.tensor(tensor).bytes()));
  CanonicalStream stream(contents, tensor);
  for (size_t at = 0; at < bytes.size(); at += window) {
    const size_t count = std::min(window, bytes.size() - at);
    EXPECT_OK(stream.read(ByteSpan(bytes).subspan(at, count)));
  }
  std::vector<int> values;
  for (const std::byte value : bytes) values.push_back(static_cast<int>(value));
  return values;
}

TEST(Assembled, PartsAreReadInOrderWithAnyWindow) {
  const auto source = small_contents();
  int64_t counted = 0;
  const ReadForFile read = [&](HolderId file, TensorId tensor, const Box& box,
                               int64_t first, ByteSpan into) {
    EXPECT_EQ(file, 5u);
    counted += std::ssize(into);
    return read_stream(*source, tensor, box, first, into);
  };
  const auto part = [&](const Box& box) {
    return part_of_box(read, 5, 0, Dtype::kU8, box);
  };
  std::vector<AssembledTensor> tensors(3);
  tensors[0].tensor = {.name = "columns", .dtype = Dtype::kU8, .shape = {3, 2}};
  tensors[0].parts.push_back(part(Box{{1, 4}, {2, 4}}));
  tensors[1].tensor = {.name = "empty", .dtype = Dtype::kU8, .shape = {0, 2}};
  tensors[2].tensor = {.name = "rows", .dtype = Dtype::kU8, .shape = {5, 4}};
  tensors[2].parts.push_back(part(Box{{4, 5}, {0, 4}}));
  tensors[2].parts.push_back(part(Box{{0, 1}, {0, 4}}));
  const Bytes pad{std::byte{9}, std::byte{8}, std::byte{7}, std::byte{6}};
  tensors[2].parts.push_back(part_of_bytes(pad, 3));
  const Contents made = assemble("parts", std::move(tensors), Object()).value();
  for (const size_t window : {1u, 3u, 7u, 100u}) {
    counted = 0;
    EXPECT_THAT(read_all(made, 0, window), testing::ElementsAre(6, 7, 10, 11, 14, 15));
    EXPECT_THAT(read_all(made, 2, window),
                testing::ElementsAre(16, 17, 18, 19, 0, 1, 2, 3, 9, 8, 7, 6, 9, 8, 7, 6,
                                     9, 8, 7, 6));
    EXPECT_EQ(counted, 14);  // the pad rows are not read
  }
}

TEST(Assembled, ATensorWhosePartsAreDearIsReadAhead) {
  const auto source = small_contents();
  std::vector<size_t> asked;
  const ReadForFile read = [&](HolderId, TensorId tensor, const Box& box, int64_t first,
                               ByteSpan into) {
    asked.push_back(into.size());
    return read_stream(*source, tensor, box, first, into);
  };
  std::vector<AssembledTensor> tensors(2);
  for (AssembledTensor& each : tensors) {
    each.tensor = {.dtype = Dtype::kU8, .shape = {3, 2}};
    each.parts.push_back(part_of_box(read, 0, 0, Dtype::kU8, Box{{1, 4}, {2, 4}}));
  }
  tensors[0].tensor.name = "dear", tensors[1].tensor.name = "cheap";
  tensors[0].ahead = 4;
  const Contents made = assemble("parts", std::move(tensors), Object()).value();
  EXPECT_THAT(read_all(made, 0, 1), testing::ElementsAre(6, 7, 10, 11, 14, 15));
  EXPECT_THAT(asked, testing::ElementsAre(4, 2));
  asked.clear();
  EXPECT_THAT(read_all(made, 1, 2), testing::ElementsAre(6, 7, 10, 11, 14, 15));
  EXPECT_THAT(asked, testing::ElementsAre(2, 2, 2));
}

TEST(Assembled, AFailureOfTheCallerEndsTheRead) {
  std::vector<AssembledTensor> tensors(1);
  tensors[0].tensor = {.name = "t", .dtype = Dtype::kU8, .shape = {1}};
  const ReadForFile stop = [](HolderId, TensorId, const Box&, int64_t,
                              ByteSpan) -> Result<void> { return unavailable("stop"); };
  tensors[0].parts.push_back(part_of_box(stop, 0, 0, Dtype::kU8, Box{{0, 1}}));
  const Contents made = assemble("parts", std::move(tensors), Object()).value();
  Bytes into(1);
  EXPECT_ERROR(read_canonical(made, 0, 0, into), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace holdfast
