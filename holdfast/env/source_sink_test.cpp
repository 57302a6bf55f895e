#include "holdfast/env/source_sink.h"

#include <gtest/gtest.h>

#include <limits>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/memory_sink_testing.h"

namespace holdfast {
namespace {

class SourceTest : public ::testing::Test {
 protected:
  SourceTest() {
    env_.write_file("a", bytes_of("0123456789")).value();
    file_ = FileSource::open(env_, "a").value();
    memory_ = std::make_unique<MemorySource>("m", copy_of(bytes_of("0123456789")));
    sources_ = {file_.get(), memory_.get()};
  }

  MemoryEnv env_;
  std::unique_ptr<Source> file_, memory_;
  std::vector<const Source*> sources_;
};

TEST_F(SourceTest, ReadsAnyRangeInside) {
  for (const Source* source : sources_) {
    EXPECT_EQ(source->size(), 10);
    EXPECT_EQ(text_of(*source->read_bytes(3, 4)), "3456");
    EXPECT_EQ(text_of(*source->read_bytes(0, 10)), "0123456789");
    EXPECT_EQ(text_of(*source->read_bytes(10, 0)), "");
    Bytes into(2);
    ASSERT_OK(source->read(8, into));
    EXPECT_EQ(text_of(into), "89");
  }
}

TEST_F(SourceTest, RangesOutsideAreCorruptBeforeAnythingIsAllocated) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const Source* source : sources_) {
    for (const auto& [offset, count] : std::vector<std::pair<int64_t, int64_t>>{
             {8, 3}, {11, 0}, {-1, 1}, {0, -1}, {0, kMost}, {kMost, kMost}, {10, 1}}) {
      EXPECT_ERROR(source->read_bytes(offset, count), ErrorCode::kCorrupt);
    }
    Bytes into(11);
    EXPECT_ERROR(source->read(0, into), ErrorCode::kCorrupt);
  }
  EXPECT_EQ(message_of(file_->read_bytes(8, 3)),
            "a: 3 bytes at 8, but there are only 10");
}

TEST_F(SourceTest, AFileThatBecameShorterIsCorrupt) {
  ASSERT_OK(env_.write_file("a", bytes_of("0123")));
  EXPECT_ERROR(file_->read_bytes(2, 4), ErrorCode::kCorrupt);
  EXPECT_EQ(text_of(*file_->read_bytes(2, 2)), "23");
}

TEST(SinkTest, SinksTakeBytesInOrder) {
  MemoryEnv env;
  const auto file = FileSink::create(env, "a").value();
  MemorySink memory;
  for (Sink* sink : std::vector<Sink*>{file.get(), &memory}) {
    ASSERT_OK(sink->append(bytes_of("ab")));
    ASSERT_OK(sink->append({}));
    ASSERT_OK(sink->append(bytes_of("c")));
    EXPECT_EQ(sink->size(), 3);
  }
  EXPECT_EQ(text_of(memory.bytes()), "abc");
  ASSERT_OK(file->finish());
  EXPECT_EQ(*env.read_text("a"), "abc");
}

TEST(SinkTest, AFinishedFileIsDurableUnderItsName) {
  MemoryEnv env;
  const auto sink = FileSink::create(env, "a").value();
  ASSERT_OK(env.sync_folder("."));
  ASSERT_OK(sink->append(bytes_of("abc")));
  EXPECT_EQ(*env.after_crash({})->read_text("a"), "");
  ASSERT_OK(sink->finish());
  EXPECT_EQ(*env.after_crash({})->read_text("a"), "abc");
}

TEST(SinkTest, AFileSinkReplacesNothing) {
  MemoryEnv env;
  ASSERT_OK(env.write_file("a", bytes_of("old")));
  EXPECT_ERROR(FileSink::create(env, "a"), ErrorCode::kConflict);
  env.set_capacity(4);
  const auto sink = FileSink::create(env, "b").value();
  EXPECT_ERROR(sink->append(bytes_of("12")), ErrorCode::kNoSpace);
  EXPECT_EQ(sink->size(), 0);
}

}  // namespace
}  // namespace holdfast
