// A file of real Keras is read, patched and verified.
#include "holdfast/formats/keras.h"

#include <gtest/gtest.h>

#include "holdfast/base/json.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/format.h"

namespace holdfast::keras_test {
namespace {

const std::filesystem::path kFixtures = HOLDFAST_KERAS_FIXTURES;

class KerasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto disk = make_posix_env();
    whole_ = disk->read_file(kFixtures / "model.keras").value();
    ASSERT_OK(env_.write_file("m.keras", whole_));
    expected_ = parse_json(disk->read_text(kFixtures / "expected.json").value(), "json")
                    .value();
  }

  size_t damage() {
    const Format* format = format_of(env_, "m.keras").value();
    return format->verify(env_, "m.keras", {}).value().damage.size();
  }

  MemoryEnv env_;
  Bytes whole_;
  Json expected_;
};

TEST_F(KerasTest, TensorsAreThoseOfKeras) {
  EXPECT_EQ(format_of(env_, "m.keras").value()->name, "keras");
  const auto contents = open_file(env_, "m.keras");
  ASSERT_OK(contents);
  EXPECT_EQ(contents->collection.tensors().size(), expected_["tensors"].size());
  for (const auto& [name, tensor] : expected_["tensors"].items()) {
    const auto found = contents->collection.find(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(Json(contents->collection.tensor(*found).shape.sizes()), tensor["shape"]);
    EXPECT_EQ(to_hex(tests::canonical_bytes(*contents, *found)),
              tensor["hex"].get<std::string>());
  }
  EXPECT_TRUE(contents->metadata.contains("config.json"));
  EXPECT_EQ(damage(), 0U);
}

TEST_F(KerasTest, APatchKeepsTheCrcRightAndARawOneDoesNot) {
  const auto before = open_file(env_, "m.keras").value();
  const std::string name = before.collection.tensor(0).name;
  // Read now, because contents are read from the file when they are asked for.
  Bytes values = tests::canonical_bytes(before, 0);
  values[4 + 1] ^= std::byte{8};
  const std::vector<Flip> flips{{name, 1, {std::byte{0}, std::byte{8}}}};
  for (const Checksums checksums : {Checksums::kConsistent, Checksums::kRaw}) {
    const auto patch = plan_patch(env_, "m.keras", flips, checksums);
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(env_, *patch));
    EXPECT_EQ(damage(), checksums == Checksums::kRaw ? 1U : 0U);
    const auto after = open_file(env_, "m.keras");
    ASSERT_OK(after);
    EXPECT_TRUE(tests::canonical_bytes(*after, 0) == values);
    ASSERT_OK(apply_patch(env_, inverse(*patch)));
    EXPECT_TRUE(env_.read_file("m.keras").value() == whole_);
  }
}

}  // namespace
}  // namespace holdfast::keras_test
