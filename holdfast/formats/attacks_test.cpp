// Every file in tests/attacks/safetensors was made to break a reader: with lengths that
// overflow, offsets that overlap, or names that lead out of the folder. Each must be
// refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "holdfast/base/testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/safetensors.h"
#include "holdfast/formats/sharded_safetensors.h"

namespace holdfast::attacks_test {
namespace {

const std::filesystem::path kAttacks = HOLDFAST_ATTACKS;

Result<Contents> open(Env& env, const Path& path) {
  if (path.native().ends_with(kShardIndexSuffix)) {
    return open_sharded_safetensors(env, path);
  }
  return open_safetensors(HOLDFAST_TRY(FileSource::open(env, path)));
}

bool is_sentence(std::string_view message) {
  return message.find(": ") != message.npos && message.size() < 500 &&
         std::ranges::none_of(
             message, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

TEST(AttacksTest, EveryFileIsRefusedWithASentence) {
  const auto env = make_posix_env();
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kAttacks)) {
    const auto opened = open(*env, entry.path());
    ASSERT_FALSE(opened.ok()) << entry.path();
    const Error& error = opened.error();
    EXPECT_TRUE(error.code() == ErrorCode::kCorrupt ||
                error.code() == ErrorCode::kUnsupported)
        << name_of(error.code());
    EXPECT_TRUE(is_sentence(error.message())) << error.message();
    RecordProperty(entry.path().stem(), error.message());
    ++seen;
  }
  EXPECT_GE(seen, 60);
}

}  // namespace
}  // namespace holdfast::attacks_test
