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
  std::vector<AssembledTensor> tensors(3);
  tensors[0].tensor = {.name = "columns", .dtype = Dtype::kU8, .shape = {3, 2}};
  tensors[0].parts.push_back(part_of_box(source, 0, Box{{1, 4}, {2, 4}}));
  tensors[1].tensor = {.name = "empty", .dtype = Dtype::kU8, .shape = {0, 2}};
  tensors[2].tensor = {.name = "rows", .dtype = Dtype::kU8, .shape = {5, 4}};
  tensors[2].parts.push_back(part_of_box(source, 0, Box{{4, 5}, {0, 4}}));
  tensors[2].parts.push_back(part_of_box(source, 0, Box{{0, 1}, {0, 4}}));
  const Bytes pad{std::byte{9}, std::byte{8}, std::byte{7}, std::byte{6}};
  tensors[2].parts.push_back(part_of_bytes(pad, 3));
  int64_t counted = 0;
  const Contents made = assemble("parts", std::move(tensors), Object(),
                                 [&](int64_t bytes) -> Result<void> {
                                   counted += bytes;
                                   return {};
                                 })
                            .value();
  for (const size_t window : {1u, 3u, 7u, 100u}) {
    counted = 0;
    EXPECT_THAT(read_all(made, 0, window), testing::ElementsAre(6, 7, 10, 11, 14, 15));
    EXPECT_THAT(read_all(made, 2, window),
                testing::ElementsAre(16, 17, 18, 19, 0, 1, 2, 3, 9, 8, 7, 6, 9, 8, 7, 6,
                                     9, 8, 7, 6));
    EXPECT_EQ(counted, 26);
  }
}

TEST(Assembled, AFailureOfTheCallerEndsTheRead) {
  std::vector<AssembledTensor> tensors(1);
  tensors[0].tensor = {.name = "t", .dtype = Dtype::kU8, .shape = {1}};
  tensors[0].parts.push_back(part_of_bytes(Bytes(1)));
  const Contents made =
      assemble("parts", std::move(tensors), Object(),
               [](int64_t) -> Result<void> { return unavailable("stop"); })
          .value();
  Bytes into(1);
  EXPECT_ERROR(read_canonical(made, 0, 0, into), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace holdfast
