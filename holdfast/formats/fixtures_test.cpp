// Files that the reference libraries wrote are read with the values that those
// libraries saved.
#include <gtest/gtest.h>

#include "holdfast/base/json.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/formats/format.h"

namespace holdfast::fixtures_test {
namespace {

const std::filesystem::path kFixtures = HOLDFAST_FIXTURES;

void expect_tensor(const Contents& contents, const std::string& name,
                   const Json& expected) {
  const auto found = contents.collection.find(name);
  ASSERT_TRUE(found) << name;
  const Tensor& tensor = contents.collection.tensor(*found);
  EXPECT_EQ(name_of(tensor.dtype), expected["dtype"].get<std::string>()) << name;
  EXPECT_EQ(Json(tensor.shape.sizes()), expected["shape"]) << name;
  EXPECT_EQ(to_hex(tests::canonical_bytes(contents, *found)),
            expected["hex"].get<std::string>())
      << name;
}

TEST(FixturesTest, SafetensorsOfTheReferenceLibraryReadAsTheyWereMeant) {
  const auto env = make_posix_env();
  const Path folder = kFixtures / "safetensors";
  const auto text = env->read_text(folder / "expected.json");
  ASSERT_OK(text);
  const auto files = parse_json(*text, "expected.json");
  ASSERT_OK(files);
  EXPECT_EQ(files->size(), 4U);
  for (const auto& [file, expected] : files->items()) {
    const auto contents = open_file(*env, folder / file);
    ASSERT_OK(contents);
    EXPECT_EQ(Json(contents->metadata), expected["metadata"]) << file;
    EXPECT_EQ(contents->collection.tensors().size(), expected["tensors"].size());
    for (const auto& [name, tensor] : expected["tensors"].items()) {
      expect_tensor(*contents, name, tensor);
    }
  }
}

}  // namespace
}  // namespace holdfast::fixtures_test
