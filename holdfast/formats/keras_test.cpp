// What is particular to .keras files. fixtures_test.cpp reads and patches them as it does
// the files of all formats.
#include "holdfast/formats/keras.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holdfast/archive/zip_writer.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/patch_testing.h"

namespace holdfast::keras_test {
namespace {

const std::filesystem::path kFixtures = HOLDFAST_FIXTURES;

TEST(KerasTest, TheJsonRecordsAreMetadata) {
  const auto disk = make_posix_env();
  const auto contents = open_file(*disk, kFixtures / "keras/model.keras");
  ASSERT_OK(contents);
  EXPECT_TRUE(contents->metadata.contains("config.json"));
  EXPECT_TRUE(contents->metadata.contains("metadata.json"));
}

TEST(KerasTest, AWeightIsReadOnlyIfTheRecordHasItsCrc) {
  MemoryEnv env;
  Bytes bytes = make_posix_env()->read_file(kFixtures / "keras/model.keras").value();
  ASSERT_OK(env.write_file("m.keras", bytes));
  const auto whole = open_file(env, "m.keras");
  ASSERT_OK(whole);
  const Tensor& tensor = whole->collection.tensor(0);
  Bytes weight(static_cast<size_t>(tensor.bytes()));
  ASSERT_OK(CanonicalStream(*whole, 0).read(weight));
  // The same bytes are somewhere in the file, because Keras stores weights as they are.
  const auto at =
      std::search(bytes.begin(), bytes.end(), weight.begin(), weight.end());
  ASSERT_NE(at, bytes.end());
  *at ^= std::byte{1};
  ASSERT_OK(env.write_file("m.keras", bytes));
  const auto damaged = open_file(env, "m.keras");
  ASSERT_OK(damaged);
  const auto read = CanonicalStream(*damaged, 0).read(weight);
  EXPECT_ERROR(read, ErrorCode::kCorrupt);
  EXPECT_THAT(message_of(read),
              testing::HasSubstr("model.weights.h5: the record has crc"));
}

// The HDF5 file inside cannot move its end, because the rest of the archive is behind it.
TEST(KerasTest, AChunkThatGrowsIsRefused) {
  MemorySink sink;
  ZipWriter zip(sink);
  ASSERT_OK(
      zip.add("model.weights.h5",
              make_posix_env()->read_file(kFixtures / "chainer/optimizer.h5").value()));
  ASSERT_OK(zip.add("metadata.json", bytes_of("{}")));
  ASSERT_OK(zip.finish());
  const Bytes before = std::move(sink).take_bytes();
  MemoryEnv env;
  ASSERT_OK(env.write_file("m.keras", before));
  const auto contents = open_file(env, "m.keras");
  ASSERT_OK(contents);
  // Numbers of a training have similar exponents and so compress well. Random bits do not.
  std::vector<Flip> flips;
  tests::Dice dice(1);
  const Tensor* largest = &contents->collection.tensor(0);
  for (const Tensor& tensor : contents->collection.tensors()) {
    if (tensor.bytes() > largest->bytes()) largest = &tensor;
  }
  for (int64_t i = 0; i < largest->shape.elements(); ++i) {
    Flip flip{.tensor = largest->name, .element = i};
    for (size_t b = 0; b < 4; ++b) flip.mask[b] = static_cast<std::byte>(dice.next());
    flips.push_back(flip);
  }
  const auto patch = plan_patch(env, "m.keras", flips, Checksums::kConsistent);
  EXPECT_ERROR(patch, ErrorCode::kUnsupported);
  EXPECT_THAT(message_of(patch), testing::HasSubstr("but room for"));
  EXPECT_TRUE(env.read_file("m.keras").value() == before);
}

TEST(KerasShardsTest, AnIndexThatContradictsItsFilesIsRefused) {
  const auto disk = make_posix_env();
  MemoryEnv env;
  const Bytes shard =
      disk->read_file(kFixtures / "keras/sharded_00000.weights.h5").value();
  ASSERT_OK(env.write_file("m_00000.weights.h5", shard));
  ASSERT_OK(env.write_file("m_00001.weights.h5", shard));
  const auto refused = [&](std::string_view map, std::string_view words) {
    const std::string json = fmt::format(R"({{"weight_map": {}}})", map);
    ASSERT_OK(env.write_file("m.weights.json", bytes_of(json)));
    const auto opened = open_file(env, "m.weights.json");
    EXPECT_ERROR(opened, ErrorCode::kCorrupt);
    EXPECT_THAT(message_of(opened), testing::HasSubstr(std::string(words)));
  };
  refused("[]", "has no weight_map");
  refused(R"({"/layers/dense/vars": 3})", "expected the plain name of a file");
  refused(R"({"/layers/dense/vars": "../m.h5"})", "expected the plain name of a file");
  refused(R"({"/layers/dense/vars": ["m_00002.weights.h5"]})", "is missing");
  refused(R"({"/layers/none/vars": "m_00000.weights.h5"})", "has no tensor in");
  refused(R"({"/layers/dense/vars": ["m_00000.weights.h5", "m_00001.weights.h5"]})",
          "two tensors have the name");
}

}  // namespace
}  // namespace holdfast::keras_test
