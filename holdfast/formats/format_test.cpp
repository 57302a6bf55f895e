#include "holdfast/formats/format.h"

#include <gtest/gtest.h>

#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/env_wrapper.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"

namespace holdfast {
namespace {

using tests::expect_same_tensors;
using tests::random_contents;

class FormatTest : public ::testing::Test {
 protected:
  MemoryEnv env_;
  const Contents contents_ =
      random_contents({{.name = "w", .dtype = Dtype::kF32, .shape = {3}}});
};

TEST_F(FormatTest, ThePathChoosesTheFormatToWrite) {
  EXPECT_EQ(format_for("a/model.safetensors").value()->name, "safetensors");
  EXPECT_EQ(format_for("a/model/").value()->name, "safetensors-folder");
  const auto other = format_for("model.txt");
  EXPECT_ERROR(other, ErrorCode::kUnsupported);
  EXPECT_NE(message_of(other).find("safetensors-folder, safetensors"),
            std::string::npos);
}

TEST_F(FormatTest, TheContentsChooseTheFormatToRead) {
  ASSERT_OK(write_file(env_, "model.safetensors", contents_));
  ASSERT_OK(env_.rename("model.safetensors", "model.txt"));
  EXPECT_EQ(format_of(env_, "model.txt").value()->name, "safetensors");
  ASSERT_OK(write_file(env_, "folder/", contents_));
  EXPECT_EQ(format_of(env_, "folder").value()->name, "safetensors-folder");
  const auto opened = open_file(env_, "folder/model.safetensors.index.json");
  ASSERT_OK(opened);
  expect_same_tensors(*opened, contents_);
}

TEST_F(FormatTest, WhatIsNoFormatIsUnsupportedAndWhatIsNotThereNotFound) {
  ASSERT_OK(env_.write_file("text", bytes_of("hello, this is a text")));
  ASSERT_OK(env_.write_file("short", bytes_of("")));
  ASSERT_OK(env_.create_folder("folder"));
  for (const char* path : {"text", "short", "folder"}) {
    EXPECT_ERROR(open_file(env_, path), ErrorCode::kUnsupported);
  }
  EXPECT_ERROR(open_file(env_, "nothing"), ErrorCode::kNotFound);
  EXPECT_ERROR(find_format("gif"), ErrorCode::kUnsupported);
}

// A file system with files without names, which it cannot give a name: it has no hard
// links.
class LinklessEnv : public EnvWrapper {
 public:
  using EnvWrapper::EnvWrapper;
  Result<void> name_file(File&, const Path& to) override {
    return unsupported("{}: name: Operation not supported", to.native());
  }
};

TEST_F(FormatTest, AFileSystemWithoutHardLinksGetsTheFileByARename) {
  const TempFolder temp;
  const auto disk = make_posix_env();
  LinklessEnv env(*disk);
  ASSERT_OK(write_file(env, temp.path() / "model.pt", contents_));
  const auto opened = open_file(env, temp.path() / "model.pt");
  ASSERT_OK(opened);
  expect_same_tensors(*opened, contents_);
  EXPECT_EQ(disk->list(temp.path()).value(), std::vector<std::string>{"model.pt"});
}

TEST_F(FormatTest, AFolderThatIsMissingIsNamedAndNoTemporaryFile) {
  const auto written = write_file(env_, "/no/such/model.pt", contents_);
  EXPECT_ERROR(written, ErrorCode::kNotFound);
  EXPECT_EQ(message_of(written),
            "/no/such/model.pt: there is no folder /no/such; expected one that exists");
}

TEST_F(FormatTest, EveryFormatIsFoundByItsName) {
  for (const Format& format : formats()) {
    EXPECT_EQ(find_format(format.name).value(), &format);
    EXPECT_FALSE(format.what.empty());
  }
}

}  // namespace
}  // namespace holdfast
