// Damage of TensorFlow's checkpoints is found, and single bits of them are changed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "holdfast/base/json.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/contents/patch.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/tensorflow/tensor_bundle.h"

namespace holdfast::bundle_damage_test {
namespace {

using tests::Dice;

const std::filesystem::path kFixtures = HOLDFAST_TENSORFLOW_FIXTURES;
const std::filesystem::path kAttacks = HOLDFAST_TENSORFLOW_ATTACKS;

class BundleDamageTest : public ::testing::Test {
 protected:
  // Copies the files of a fixture into the disk in memory.
  void copy(const std::string& prefix, const Path& folder = kFixtures) {
    const auto env = make_posix_env();
    for (const std::string& name : env->list(folder).value()) {
      if (!name.starts_with(prefix + ".")) continue;
      ASSERT_OK(disk_.write_file(name, env->read_file(folder / name).value()));
    }
  }

  void flip_byte(const Path& file, size_t at) {
    Bytes bytes = disk_.read_file(file).value();
    bytes[at] ^= std::byte{16};
    ASSERT_OK(disk_.write_file(file, bytes));
  }

  FormatReport verify(const Path& path) {
    return verify_tensor_bundle(disk_, path, {}).value();
  }

  // All tensors and strings, read with their checksums.
  Result<std::map<std::string, Bytes>> read_all(const Path& path) {
    const Contents contents = HOLDFAST_TRY(open_tensor_bundle(disk_, path));
    std::map<std::string, Bytes> all;
    for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
      const Tensor& tensor = contents.collection.tensor(t);
      Bytes& bytes = all[tensor.name];
      bytes.resize(static_cast<size_t>(tensor.bytes()));
      CanonicalStream stream(contents, t);
      HOLDFAST_TRY(stream.read(bytes));
    }
    return all;
  }

  std::map<std::string, Bytes> files() {
    std::map<std::string, Bytes> files;
    for (const std::string& name : disk_.list("").value()) {
      files[name] = disk_.read_file(name).value();
    }
    return files;
  }

  static Flip flip_bit(const std::string& tensor, int64_t element, int bit) {
    Flip flip{.tensor = tensor, .element = element};
    flip.mask[static_cast<size_t>(bit / 8)] = std::byte{1} << (bit % 8);
    return flip;
  }

  MemoryEnv disk_;
};

TEST_F(BundleDamageTest, GoodCheckpointsAreWholeAndAllBytesAreChecked) {
  for (const char* prefix :
       {"dtypes", "strings", "two_shards", "partitioned", "variables", "big_endian"}) {
    copy(prefix);
    const FormatReport report = verify(prefix);
    EXPECT_TRUE(report.damage.empty()) << report.damage.front().what;
    EXPECT_TRUE(report.checked) << prefix;
    EXPECT_GT(report.bytes_read, 0);
  }
}

TEST_F(BundleDamageTest, AllDamageIsListedWithFileBytesAndTensors) {
  copy("two_shards");
  flip_byte("two_shards.data-00000-of-00002", 3);
  flip_byte("two_shards.data-00000-of-00002", 50);
  flip_byte("two_shards.data-00001-of-00002", 30);
  const FormatReport report = verify("two_shards");
  ASSERT_EQ(report.damage.size(), 3U);
  EXPECT_EQ(report.damage[0].file, "two_shards.data-00000-of-00002");
  EXPECT_EQ(report.damage[0].tensors, std::vector<std::string>{"a"});
  EXPECT_EQ(report.damage[0].bytes, 48);
  EXPECT_EQ(report.damage[1].tensors, std::vector<std::string>{"b"});
  EXPECT_EQ(report.damage[1].offset, 48);
  EXPECT_EQ(report.damage[2].tensors, std::vector<std::string>{"text"});
}

TEST_F(BundleDamageTest, SlicesAreNamedByTheirTensorAndMissingShardsAreDamage) {
  copy("partitioned");
  flip_byte("partitioned.data-00001-of-00005", 3);
  ASSERT_OK(disk_.remove_file("partitioned.data-00004-of-00005"));
  const FormatReport report = verify("partitioned");
  ASSERT_EQ(report.damage.size(), 2U);
  EXPECT_EQ(report.damage[0].tensors, std::vector<std::string>{"w"});
  EXPECT_EQ(report.damage[1].tensors, std::vector<std::string>{"v"});
  EXPECT_NE(report.damage[1].what.find("is missing"), std::string::npos);
}

TEST_F(BundleDamageTest, AWrongByteAnywhereInTheIndexIsDamage) {
  copy("two_shards");
  const size_t size = disk_.read_file("two_shards.index")->size();
  for (size_t at = 0; at < size; ++at) {
    flip_byte("two_shards.index", at);
    const auto report = verify_tensor_bundle(disk_, "two_shards", {});
    // The padding of the footer and the block of meta data, which no reader reads, are
    // not covered by a checksum that is checked.
    const bool covered = at < size - 48 - 13 - 40;
    EXPECT_TRUE(!covered || (report.ok() && !report->damage.empty())) << at;
    flip_byte("two_shards.index", at);
  }
  EXPECT_TRUE(verify("two_shards").damage.empty());
}

// 2,000 random flips, singly or several in a patch, keep every checksum right, change
// nothing else, and are undone to the bit.
TEST_F(BundleDamageTest, ConsistentPatchesKeepEveryChecksumRight) {
  Dice dice(5);
  for (const char* prefix : {"dtypes", "two_shards", "partitioned", "big_endian"}) {
    copy(prefix);
    const auto before = read_all(prefix);
    ASSERT_OK(before);
    const auto old_files = files();
    const Contents contents = open_tensor_bundle(disk_, prefix).value();
    for (int i = 0; i < 25; ++i) {
      std::vector<Flip> flips;
      auto expected = *before;
      for (int k = 0; k < 20; ++k) {
        const auto& tensors = contents.collection.tensors();
        const Tensor& tensor =
            tensors[static_cast<size_t>(dice.below(std::ssize(tensors)))];
        if (tensor.shape.elements() == 0) continue;
        const int64_t element = dice.below(tensor.shape.elements());
        const int64_t bytes = bytes_of(tensor.dtype);
        flips.push_back(
            flip_bit(tensor.name, element, static_cast<int>(dice.below(8 * bytes))));
        for (int64_t b = 0; b < bytes; ++b) {
          expected[tensor.name][static_cast<size_t>(element * bytes + b)] ^=
              flips.back().mask[static_cast<size_t>(b)];
        }
      }
      const auto patch =
          plan_patch_tensor_bundle(disk_, prefix, flips, Checksums::kConsistent);
      ASSERT_OK(patch);
      ASSERT_OK(apply_patch(disk_, *patch));
      const auto after = read_all(prefix);
      ASSERT_OK(after);
      EXPECT_TRUE(*after == expected) << prefix << " " << i;
      EXPECT_TRUE(verify(prefix).damage.empty());
      ASSERT_OK(apply_patch(disk_, inverse(*patch)));
      ASSERT_TRUE(files() == old_files) << prefix << " " << i;
    }
  }
}

TEST_F(BundleDamageTest, ARawPatchChangesOneByteAndTheChecksumFindsIt) {
  copy("two_shards");
  const std::vector flips{flip_bit("a", 7, 30)};
  const auto patch =
      plan_patch_tensor_bundle(disk_, "two_shards", flips, Checksums::kRaw);
  ASSERT_OK(patch);
  ASSERT_EQ(patch->files.size(), 1U);
  EXPECT_EQ(patch->bytes(), 1);
  ASSERT_OK(apply_patch(disk_, *patch));
  EXPECT_ERROR(read_all("two_shards"), ErrorCode::kCorrupt);
  const FormatReport report = verify("two_shards");
  ASSERT_EQ(report.damage.size(), 1U);
  EXPECT_EQ(report.damage[0].tensors, std::vector<std::string>{"a"});
}

// The checksum of what cannot be read is checked nevertheless, if it can be computed.
TEST_F(BundleDamageTest, WhatIsLeftOutIsVerifiedAndNotPatched) {
  for (const std::string name :
       {"a_quantized_dtype", "a_variant", "a_dtype_unknown", "nine_dimensions",
        "slices_of_a_quantized_dtype", "strings_in_slices"}) {
    SCOPED_TRACE(name);
    copy(name, kAttacks);
    const FormatReport report = verify(name);
    EXPECT_TRUE(report.damage.empty()) << report.damage.front().what;
    EXPECT_TRUE(report.checked);
    const std::string odd = name.starts_with("strings") ? "s" : "a";
    const auto plan = [&](const std::string& tensor) {
      const std::vector flips{flip_bit(tensor, 0, 0)};
      return plan_patch_tensor_bundle(disk_, name, flips, Checksums::kConsistent);
    };
    EXPECT_ERROR(plan(odd), ErrorCode::kUnsupported);
    const auto patch = plan("good");
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(disk_, *patch));
    EXPECT_TRUE(verify(name).damage.empty());
    flip_byte(name + ".data-00000-of-00001", 1);
    const FormatReport damaged = verify(name);
    ASSERT_EQ(damaged.damage.size(), 1U);
    EXPECT_EQ(damaged.damage[0].tensors, std::vector<std::string>{odd});
  }
}

TEST_F(BundleDamageTest, WhatIsTooMuchToCheckIsNoDamage) {
  for (const std::string name :
       {"strings_as_many_as_2_to_the_58", "strings_of_nine_dimensions"}) {
    copy(name, kAttacks);
    const FormatReport report = verify(name);
    EXPECT_TRUE(report.damage.empty()) << report.damage.front().what;
    EXPECT_FALSE(report.checked);
  }
}

TEST_F(BundleDamageTest, StringsAndStrangersAreNotPatched) {
  copy("strings");
  const auto plan = [&](const std::string& tensor, int64_t element) {
    const std::vector flips{flip_bit(tensor, element, 0)};
    return plan_patch_tensor_bundle(disk_, "strings", flips, Checksums::kConsistent);
  };
  EXPECT_ERROR(plan("vector", 0), ErrorCode::kUnsupported);
  EXPECT_ERROR(plan("nobody", 0), ErrorCode::kNotFound);
  EXPECT_ERROR(plan("w", 3), ErrorCode::kInvalid);
  EXPECT_OK(plan("w", 2));
}

// Real TensorFlow reads what we wrote and what a consistent patch changed, and refuses
// what a raw patch damaged. check_written.py says what is checked, in one process,
// because importing TensorFlow takes most of the time.
TEST_F(BundleDamageTest, RealTensorFlowReadsOursAndRefusesDamage) {
  const char* python = std::getenv("HOLDFAST_TENSORFLOW_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "HOLDFAST_TENSORFLOW_PYTHON names no Python";
  const TempFolder folder;
  const auto env = make_posix_env();
  const auto text = env->read_text(kFixtures / "expected.json");
  const Json fixtures = parse_json(*text, "expected.json").value()["checkpoints"];
  Json checks = Json::object();
  for (const auto& [prefix, expected] : fixtures.items()) {
    const Path written = folder.path() / ("written-" + prefix);
    const auto contents = open_tensor_bundle(*env, kFixtures / prefix);
    ASSERT_OK(contents);
    ASSERT_OK(write_tensor_bundle(*env, written, *contents));
    checks[written.native()] = expected;
    for (const Checksums checksums : {Checksums::kConsistent, Checksums::kRaw}) {
      const bool raw = checksums == Checksums::kRaw;
      const Path copied = folder.path() / (raw ? "raw" : "consistent");
      ASSERT_OK(env->create_folders(copied));
      for (const std::string& name : env->list(kFixtures).value()) {
        if (!name.starts_with(prefix + ".")) continue;
        std::filesystem::copy_file(kFixtures / name, copied / name);
      }
      const Tensor& tensor = contents->collection.tensors().front();
      const std::vector flips{flip_bit(tensor.name, 1, 6), flip_bit(tensor.name, 0, 0)};
      const auto patch =
          plan_patch_tensor_bundle(*env, copied / prefix, flips, checksums);
      ASSERT_OK(patch);
      ASSERT_OK(apply_patch(*env, *patch));
      Json& check = checks[(copied / prefix).native()] = expected;
      Json& changed = check["tensors"][tensor.name];
      Bytes bytes = from_hex(changed["hex"].get<std::string>()).value();
      bytes[0] ^= std::byte{1};
      bytes[static_cast<size_t>(bytes_of(tensor.dtype))] ^= std::byte{1 << 6};
      changed["hex"] = to_hex(bytes);
      if (raw) changed = "damaged";
    }
  }
  const Path list = folder.path() / "list.json";
  ASSERT_OK(env->write_file(list, bytes_of(checks.dump())));
  const std::string command =
      fmt::format("'{}' '{}' '{}'", python, (kFixtures / "check_written.py").native(),
                  list.native());
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace holdfast::bundle_damage_test
