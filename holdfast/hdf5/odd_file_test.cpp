// Files of which we cannot read everything: the rest is read, and what is left out is
// named.
#include "holdfast/contents/patch.h"
#include "holdfast/hdf5/hdf5_testing.h"

namespace holdfast::hdf5_test {
namespace {

// odd.h5 has a dataset or link of every kind that cannot be read, and others.
TEST(Hdf5Test, WhatCannotBeReadIsLeftOutByNameAndTheRestIsRead) {
  const auto contents = open_path(kFixtures / "odd.h5");
  ASSERT_OK(contents);
  EXPECT_EQ(lines_of(*contents), read_lines(kFixtures / "odd.txt"));
  EXPECT_EQ(contents->left_out, read_lines(kFixtures / "odd_left_out.txt"));
  EXPECT_EQ(contents->hdf5.not_kept,
            (std::vector<std::string>{"loop/again: a link to a group that it lies in",
                                      "named type: a named datatype",
                                      "weights: attribute \"pointer\": references"}));
  const std::array<std::byte, 16> mask{std::byte{1}};
  const auto env = make_posix_env();
  EXPECT_OK(plan_patch_hdf5(*env, kFixtures / "odd.h5",
                            std::vector<Flip>{{"weights", 1, mask}},
                            Checksums::kConsistent));
  EXPECT_ERROR(plan_patch_hdf5(*env, kFixtures / "odd.h5",
                               std::vector<Flip>{{"table", 0, mask}},
                               Checksums::kConsistent),
               ErrorCode::kUnsupported);
  const auto report =
      verify_hdf5(FileSource::open(*env, kFixtures / "odd.h5").value(), "odd.h5", {});
  ASSERT_OK(report);
  EXPECT_FALSE(report->checked);
}

TEST(Hdf5Test, StringsInChunksAreRead) {
  const auto contents = open_path(kFixtures / "odd.h5");
  ASSERT_OK(contents);
  const auto text = [](const char* value) { return Object(std::string(value)); };
  const Object words(Object::List{{text("one"), text("two"), text("three")}});
  const Object values(Object::Dict{{{text("words"), words}}});
  EXPECT_TRUE(contents->objects == Object(Object::Dict{{{text("values"), values}}}));
}

}  // namespace
}  // namespace holdfast::hdf5_test
