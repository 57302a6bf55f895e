// Every file in tests/attacks/corpus was made to break a reader of data files: with
// lengths that overflow, offsets that lead out of the file, or checksums that are wrong.
// Each must be refused before a sample is read.
#include <gtest/gtest.h>

#include <algorithm>

#include "holdfast/dataset/dataset_testing.h"

namespace holdfast::tests {
namespace {

using CorpusAttacksTest = CorpusTest;

bool is_sentence(std::string_view message) {
  return message.find(": ") != message.npos && message.size() < 500 &&
         std::ranges::none_of(
             message, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

TEST_F(CorpusAttacksTest, EveryFileIsRefusedWithASentence) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(HOLDFAST_CORPUS_ATTACKS)) {
    const std::string name = entry.path().filename();
    const std::string bytes = env_->read_text(entry.path()).value();
    write(name, bytes);
    if (name.ends_with(".idx")) {
      write(megatron_table_of(name).replace_extension(".bin"), std::string(14, 'x'));
    }
    const auto opened = open(name);
    ASSERT_FALSE(opened.ok()) << name;
    const Error& error = opened.error();
    EXPECT_TRUE(error.code() == ErrorCode::kCorrupt ||
                error.code() == ErrorCode::kUnsupported ||
                name == "no_sample.tar")
        << name << " " << name_of(error.code());
    EXPECT_TRUE(is_sentence(error.message())) << error.message();
    const Path index = index_path_of(Path(path(name)).replace_extension(
                                         name.ends_with(".idx") ? ".bin" : entry.path().extension()),
                                     "");
    EXPECT_EQ(env_->info(index).ok(), name == "no_sample.tar") << "an index of a bad file: " << name;
    ++seen;
  }
  EXPECT_GE(seen, 50);
}

}  // namespace
}  // namespace holdfast::tests
