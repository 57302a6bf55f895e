// Objects that belong to no run, read as files. Those of runs are tested in
// inspect/object_store_steps_test.cpp.
#include "holdfast/store/object_store_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/remote/object_memory_testing.h"

namespace holdfast::tests::object_store_env_test {
namespace {

using ::testing::ElementsAre;

class OtherObjects : public ::testing::Test {
 protected:
  void put(const std::string& key, const std::string& text) {
    ASSERT_OK(bucket_->put(key, bytes_of(text)));
  }

  MemoryEnv env_{1};
  const std::shared_ptr<MemoryObjectStore> bucket_ = std::make_shared<MemoryObjectStore>();
  int opened_ = 0;
  ObjectStoreEnv seen_{env_,
                       [this](const std::string&) -> Result<std::shared_ptr<ObjectStore>> {
                         ++opened_;
                         return std::shared_ptr<ObjectStore>(bucket_);
                       }};
};

TEST_F(OtherObjects, AreFilesInFolders) {
  put("c4/b.jsonl", "two");
  bucket_->set_clock(WallTime(std::chrono::hours(5)));
  put("c4/a.jsonl", "one");
  put("c4/en/a.jsonl", "three");
  put("c4/a.jsonl.more", "four");
  EXPECT_THAT(seen_.list("s3://runs/c4").value(),
              ElementsAre("a.jsonl", "a.jsonl.more", "b.jsonl", "en"));
  EXPECT_THAT(seen_.list("s3://runs").value(), ElementsAre("c4"));
  EXPECT_THAT(seen_.list("s3:/runs/c4/en").value(), ElementsAre("a.jsonl"));
  const FileInfo info = seen_.info("s3://runs/c4/a.jsonl").value();
  EXPECT_EQ(info.size, 3);
  EXPECT_FALSE(info.folder);
  EXPECT_EQ(info.modified, WallTime(std::chrono::hours(5)));
  EXPECT_EQ(seen_.read_text("s3://runs/c4/a.jsonl").value(), "one");
  EXPECT_EQ(seen_.read_text("s3://runs/c4/en/a.jsonl").value(), "three");
  EXPECT_ERROR(seen_.open("s3://runs/c4/a.jsonl", {.mode = OpenMode::kTruncate}),
               ErrorCode::kUnsupported);
}

TEST_F(OtherObjects, AreSeenAsTheyAreNow) {
  put("a.jsonl", "one");
  EXPECT_THAT(seen_.list("s3://runs").value(), ElementsAre("a.jsonl"));
  put("a.jsonl", "longer");
  EXPECT_EQ(seen_.info("s3://runs/a.jsonl").value().size, 6);
  ASSERT_OK(bucket_->remove("a.jsonl"));
  EXPECT_ERROR(seen_.info("s3://runs/a.jsonl"), ErrorCode::kNotFound);
  EXPECT_ERROR(seen_.open("s3://runs/a.jsonl", {}), ErrorCode::kNotFound);
  EXPECT_ERROR(seen_.list("s3://runs/c4"), ErrorCode::kNotFound);
  EXPECT_ERROR(seen_.info("s3://runs/c4"), ErrorCode::kNotFound);
}

TEST_F(OtherObjects, ThatWereListedCostOneRequestEach) {
  for (int n = 0; n < 20; ++n) put(fmt::format("c4/{}.jsonl", n), "one");
  const auto names = seen_.list("s3://runs/c4").value();
  const int64_t before = bucket_->calls();
  for (const std::string& name : names) ASSERT_OK(seen_.info(Path("s3://runs/c4") / name));
  EXPECT_EQ(bucket_->calls() - before, 20);
}

TEST_F(OtherObjects, AreReadAheadOnlyInOrder) {
  std::string text(20 << 20, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 24);
  put("a.bin", text);
  const auto file = seen_.open("s3://runs/a.bin", {}).value();
  std::string piece(1 << 20, ' ');
  const auto into = std::as_writable_bytes(std::span(piece));
  for (size_t at = 0; at < text.size(); at += piece.size()) {
    EXPECT_EQ(file->read_at(static_cast<int64_t>(at), into).value(), piece.size());
    ASSERT_EQ(piece, text.substr(at, piece.size())) << at;
  }
  for (const size_t at : {size_t{9} << 20, size_t{3}, size_t{10} << 20, text.size() - 7}) {
    const size_t count = file->read_at(static_cast<int64_t>(at), into).value();
    ASSERT_EQ(piece.substr(0, count), text.substr(at, piece.size())) << at;
  }
}

}  // namespace
}  // namespace holdfast::tests::object_store_env_test
