// What the patches of every format must do. These tests run over each format that this
// build can write and patch.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/patch_testing.h"
#include "holdfast/formats/sparse_testing.h"

namespace holdfast {
namespace {

using tests::canonical_bytes;
using tests::Dice;
using tests::files_under;
using tests::random_contents;
using tests::random_flips;
using tests::Snapshot;

class PatchConformanceTest : public ::testing::TestWithParam<const Format*> {
 protected:
  const Format& format() const { return *GetParam(); }

  // Tensors of all dtypes that the format keeps and of several ranks.
  Contents various() const {
    std::vector<Tensor> tensors;
    for (const DtypeInfo& dtype : all_dtypes()) {
      if (!format().keeps_dtype(dtype.dtype)) continue;
      for (const Shape& shape :
           {Shape{}, Shape{7}, Shape{3, 0}, Shape{2, 3, 1, 2, 5}}) {
        tensors.push_back({.name = fmt::format("{}.{}", dtype.name, shape.rank()),
                           .dtype = dtype.dtype,
                           .shape = shape});
      }
    }
    return random_contents(std::move(tensors));
  }

  void write(Env& env, const Path& path, const Contents& contents) const {
    ASSERT_OK(write_file(env, path, contents, {.format = &format()}));
  }

  // Expects that exactly the bits of the flips differ from `before`.
  static void expect_flipped(Env& env, const Path& path, const Contents& before,
                             std::span<const Flip> flips) {
    const auto seen = open_file(env, path);
    ASSERT_OK(seen);
    std::map<std::string, Bytes> want;
    for (TensorId t = 0; t < before.collection.tensors().size(); ++t) {
      want[before.collection.tensor(t).name] = canonical_bytes(before, t);
    }
    tests::apply_flips(before, flips, want);
    for (const auto& [name, bytes] : want) {
      const TensorId t = seen->collection.find(name).value();
      EXPECT_TRUE(canonical_bytes(*seen, t) == bytes) << name;
    }
  }

  MemoryEnv env_;
};

TEST_P(PatchConformanceTest, TwoThousandFlipsChangeJustTheirBits) {
  const Contents contents = various();
  write(env_, "file", contents);
  const Snapshot before = files_under(env_, "file");
  Dice dice(20);
  const std::vector<Flip> flips = random_flips(dice, contents, 2000);
  const auto patch = plan_patch(env_, "file", flips, Checksums::kConsistent);
  ASSERT_OK(patch);
  EXPECT_EQ(files_under(env_, "file"), before) << "planning changes nothing";
  ASSERT_OK(apply_patch(env_, *patch));
  expect_flipped(env_, "file", contents, flips);
  EXPECT_EQ(tests::changed_bytes(before, files_under(env_, "file")),
            tests::predicted_bytes(*patch));
  if (format().verify != nullptr) {
    const auto report = format().verify(env_, "file", {});
    ASSERT_OK(report);
    EXPECT_TRUE(report->damage.empty()) << to_string(report->damage.front());
  }
  // The same flips again undo the first ones, and so does the inverse patch.
  const auto again = plan_patch(env_, "file", flips, Checksums::kConsistent);
  ASSERT_OK(again);
  ASSERT_OK(apply_patch(env_, *again));
  EXPECT_EQ(files_under(env_, "file"), before);
  ASSERT_OK(apply_patch(env_, inverse(*again)));
  ASSERT_OK(apply_patch(env_, inverse(*patch)));
  EXPECT_EQ(files_under(env_, "file"), before);
}

TEST_P(PatchConformanceTest, EachOfManySinglePatchesKeepsTheChecksumsRight) {
  const Contents contents = various();
  write(env_, "file", contents);
  const Snapshot before = files_under(env_, "file");
  Dice dice(7);
  const std::vector<Flip> flips = random_flips(dice, contents, 60);
  std::vector<Patch> patches;
  for (const Flip& flip : flips) {
    const auto patch =
        plan_patch(env_, "file", std::array{flip}, Checksums::kConsistent);
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(env_, *patch));
    patches.push_back(*patch);
  }
  expect_flipped(env_, "file", contents, flips);
  for (auto patch = patches.rbegin(); patch != patches.rend(); ++patch) {
    ASSERT_OK(apply_patch(env_, inverse(*patch)));
  }
  EXPECT_EQ(files_under(env_, "file"), before);
}

TEST_P(PatchConformanceTest, RawFlipsLeaveTheChecksumsWrong) {
  const Contents contents = various();
  write(env_, "file", contents);
  const Snapshot before = files_under(env_, "file");
  const TensorId t = contents.collection.find("U8.1").value();
  Flip flip{.tensor = contents.collection.tensor(t).name, .element = 3};
  flip.mask[0] = std::byte{16};
  const auto patch = plan_patch(env_, "file", std::array{flip}, Checksums::kRaw);
  ASSERT_OK(patch);
  ASSERT_OK(apply_patch(env_, *patch));
  EXPECT_EQ(tests::changed_bytes(before, files_under(env_, "file")), 1);
  if (format().verify != nullptr) {
    const auto report = format().verify(env_, "file", {});
    ASSERT_OK(report);
    // The files that we write in HDF5 have no checksums.
    ASSERT_EQ(report->damage.size(), report->checked ? 1u : 0u);
    if (report->checked) {
      EXPECT_EQ(report->damage[0].tensors, std::vector<std::string>{flip.tensor});
      EXPECT_GT(report->damage[0].bytes, 0);
    }
  }
  ASSERT_OK(apply_patch(env_, inverse(*patch)));
  EXPECT_EQ(files_under(env_, "file"), before);
}

TEST_P(PatchConformanceTest, ACrashOrErrorAtAnyCallLeavesTheOldOrTheNew) {
  const Contents contents =
      random_contents({{.name = "a", .dtype = Dtype::kF32, .shape = {2, 3}},
                       {.name = "b", .dtype = Dtype::kU8, .shape = {700}}});
  Dice dice(3);
  const std::vector<Flip> flips = random_flips(dice, contents, 5);
  write(env_, "file", contents);
  const auto patch = plan_patch(env_, "file", flips, Checksums::kConsistent);
  ASSERT_OK(patch);
  tests::expect_old_or_new([&](MemoryEnv& disk) { write(disk, "file", contents); },
                           "file", *patch);
}

TEST_P(PatchConformanceTest, WhatIsNotThereIsRefusedAndNothingChanges) {
  const Contents contents = various();
  write(env_, "file", contents);
  const Snapshot before = files_under(env_, "file");
  const auto refused = [&](Flip flip, ErrorCode code) {
    EXPECT_ERROR(plan_patch(env_, "file", std::array{flip}, Checksums::kConsistent),
                 code);
  };
  refused({.tensor = "nothing"}, ErrorCode::kNotFound);
  refused({.tensor = "U8.1", .element = 7}, ErrorCode::kInvalid);
  refused({.tensor = "U8.2", .element = 0}, ErrorCode::kInvalid);
  Flip flip{.tensor = "U8.1"};
  flip.mask[1] = std::byte{1};
  refused(flip, ErrorCode::kInvalid);
  flip.mask = {std::byte{1}};
  const auto patch = plan_patch(env_, "file", std::array{flip}, Checksums::kRaw);
  ASSERT_OK(patch);
  ASSERT_EQ(patch->files.size(), 1u);
  const Path changed = patch->files[0].file;
  ASSERT_OK(env_.link(changed, "other name"));
  EXPECT_ERROR(apply_patch(env_, *patch), ErrorCode::kConflict);
  ASSERT_OK(env_.remove_file("other name"));
  ASSERT_OK(apply_patch(env_, *patch));
  EXPECT_ERROR(apply_patch(env_, *patch), ErrorCode::kConflict);
  ASSERT_OK(apply_patch(env_, inverse(*patch)));
  EXPECT_EQ(files_under(env_, "file"), before);
}

// The cost of one flip does not grow with the file. With HOLDFAST_LONG=1 the files have 5
// and 10 GiB.
TEST_P(PatchConformanceTest, OneFlipInALargeFileCostsTheSameAsInASmallOne) {
  const auto disk = make_posix_env();
  const TempFolder folder;
  std::vector<int64_t> written, read;
  const bool longer = std::getenv("HOLDFAST_LONG") != nullptr;
  for (const int64_t mib : {longer ? 10 << 10 : 1, 5 << 10}) {
    const Path path = folder.path() / fmt::format("{}", mib);
    ASSERT_OK(tests::write_sparse(*disk, path, format(), mib << 20));
    FaultyEnv env(*disk);
    Flip flip{.tensor = "large", .element = (mib << 18) - 5};
    flip.mask[2] = std::byte{8};
    const auto patch = plan_patch(env, path, std::array{flip}, Checksums::kConsistent);
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(env, *patch));
    written.push_back(env.bytes(Op::kWrite));
    read.push_back(env.bytes(Op::kRead));
    const auto seen = open_file(*disk, path);
    ASSERT_OK(seen);
    Bytes bytes(4);
    const TensorId t = seen->collection.find("large").value();
    ASSERT_OK(read_canonical(*seen, t, 4 * flip.element, bytes));
    EXPECT_EQ(bytes[2], std::byte{8});
  }
  EXPECT_LE(read[1], 1 << 20);
  EXPECT_LE(written[1], 8 << 10);
  EXPECT_LE(read[0], 1 << 20);
  // Numbers of other lengths in headers may make a difference of some bytes.
  EXPECT_NEAR(static_cast<double>(read[0]), static_cast<double>(read[1]), 512);
  EXPECT_NEAR(static_cast<double>(written[0]), static_cast<double>(written[1]), 64);
}

std::vector<const Format*> patchable_formats() {
  std::vector<const Format*> patchable;
  for (const Format& format : formats()) {
    if (format.can_write() && format.can_patch() && !format.one_tensor) {
      patchable.push_back(&format);
    }
  }
  return patchable;
}

INSTANTIATE_TEST_SUITE_P(Formats, PatchConformanceTest,
                         ::testing::ValuesIn(patchable_formats()), [](const auto& of) {
                           std::string name(of.param->name);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace holdfast
