#include "holdfast/contents/swapping_source.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

Bytes counted(int count) {
  Bytes bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(i));
  return bytes;
}

std::shared_ptr<const Source> memory(int count) {
  return std::make_shared<MemorySource>("big", counted(count));
}

TEST(SwappingSourceTest, EveryRangeOfBytesIsThatOfTheSwappedFile) {
  const auto source = SwappingSource::create(
      memory(40), {{20, 12, 3}, {1, 8, 4}, {9, 4, 2}, {13, 0, 8}, {32, 8, 8}});
  ASSERT_OK(source);
  Bytes expected = counted(40);
  for (const auto& [offset, width, count] :
       {std::tuple{1, 4, 2}, {9, 2, 2}, {20, 3, 4}, {32, 8, 1}}) {
    for (int i = 0; i < count; ++i) {
      const auto at = expected.begin() + offset + i * width;
      std::reverse(at, at + width);
    }
  }
  for (int64_t first = 0; first <= 40; ++first) {
    for (int64_t last = first; last <= 40; ++last) {
      const auto read = (*source)->read_bytes(first, last - first);
      ASSERT_OK(read);
      EXPECT_TRUE(*read == Bytes(expected.begin() + first, expected.begin() + last))
          << first << " to " << last;
    }
  }
  EXPECT_EQ((*source)->range_at(8)->width, 4);
  EXPECT_EQ((*source)->range_at(0), nullptr);
  EXPECT_EQ((*source)->range_at(13), nullptr);
}

TEST(SwappingSourceTest, RangesThatCannotBeAreRefused) {
  EXPECT_ERROR(SwappingSource::create(memory(40), {{0, 8, 4}, {4, 4, 4}}),
               ErrorCode::kCorrupt);
  EXPECT_ERROR(SwappingSource::create(memory(40), {{36, 8, 4}}), ErrorCode::kCorrupt);
  EXPECT_ERROR(SwappingSource::create(memory(40), {{0, 6, 4}}), ErrorCode::kCorrupt);
  EXPECT_ERROR(SwappingSource::create(memory(40), {{-4, 4, 4}}), ErrorCode::kCorrupt);
  EXPECT_ERROR(SwappingSource::create(memory(40), {{0, INT64_MAX / 8 * 8, 8}}),
               ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace holdfast
