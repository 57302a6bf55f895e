#include "holdfast/store/manifest.h"

#include <cmath>
#include <limits>

#include "holdfast/base/testing.h"
#include "holdfast/base/xxh3.h"

namespace holdfast::manifest_test {
namespace {

Manifest example() {
  return {.step = 400,
          .run = "6f0c",
          .epoch = 3,
          .sequence = 17,
          .attempt = 0x3f9a610000000001,
          .world = 2,
          .parallel = "tp=2",
          .parent = "step-00000300",
          .created = WallTime(Duration(1'700'000'000'123'456'789)),
          .software = {{"holdfast", "0.1"}, {"torch \"x\"\n", "2.13\\0"}},
          .metrics = {{"loss", 0.1}, {"zero", -0.0}, {"inf", INFINITY}, {"one", 1.0}},
          .files = {{"rank-0000.safetensors", int64_t{1} << 40, "crc32c:9f8e7d6c"},
                    {"objects.json", 0, "xxh3:99aa06d3014798d86001c324468d497f"}}};
}

// Returns the text with a correct digest at its end.
Bytes sealed(std::string text) {
  text += ",\n\"digest\":\"";
  return copy_of(bytes_of(text + xxh3_128(bytes_of(text)).hex() + "\"}\n"));
}

std::string replaced(std::string_view what, std::string_view by) {
  std::string text(text_of(encode_manifest(example())));
  text.resize(text.rfind(",\n\"digest\""));
  const size_t at = text.find(what);
  HOLDFAST_CHECK(at != text.npos, "no {}", what);
  return text.replace(at, what.size(), by);
}

TEST(Manifest, ReadsBackWhatWasWritten) {
  const Result<Manifest> read = decode_manifest(encode_manifest(example()), "m");
  ASSERT_OK(read);
  EXPECT_EQ(*read, example());
  EXPECT_TRUE(std::signbit(read->metrics.at("zero")));
}

TEST(Manifest, ReadsBackAMetricThatIsNoNumber) {
  Manifest manifest = example();
  manifest.metrics = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
  const Result<Manifest> read = decode_manifest(encode_manifest(manifest), "m");
  ASSERT_OK(read);
  EXPECT_TRUE(std::isnan(read->metrics.at("loss")));
}

TEST(Manifest, RefusesEverySingleBitFlip) {
  const Bytes good = encode_manifest(example());
  for (size_t i = 0; i < good.size() * 8; ++i) {
    Bytes bad = good;
    bad[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
    ASSERT_FALSE(decode_manifest(bad, "m").ok()) << "bit " << i;
  }
}

TEST(Manifest, RefusesEveryTruncationAndExtension) {
  const Bytes good = encode_manifest(example());
  for (size_t size = 0; size < good.size(); ++size) {
    ASSERT_FALSE(decode_manifest(ByteView(good).first(size), "m").ok()) << size;
  }
  for (const char more : {' ', '\n', '\0', '}'}) {
    Bytes longer = good;
    longer.push_back(static_cast<std::byte>(more));
    EXPECT_ERROR(decode_manifest(longer, "m"), ErrorCode::kCorrupt);
  }
}

TEST(Manifest, NamesWhereAndWhat) {
  const Result<Manifest> read = decode_manifest(bytes_of("{}"), "step-4/manifest.json");
  EXPECT_ERROR(read, ErrorCode::kCorrupt);
  EXPECT_NE(read.error().message().find("step-4/manifest.json"), std::string::npos);
}

TEST(Manifest, RefusesSenselessMembersThoughTheirDigestIsRight) {
  const std::pair<const char*, const char*> changes[] = {
      {"\"step\":400", "\"step\":-1"},
      {"\"step\":400", "\"step\":4e2"},
      {"\"step\":400,", ""},
      {"\"step\":400", "\"step\":400,\"more\":1"},
      {"\"step\":400", "\"step\":400,\"step\":400"},
      {"\"world\":2", "\"world\":0"},
      {"\"attempt\":\"3f", "\"attempt\":\"3F"},
      {"objects.json", "../objects.json"},
      {"objects.json", "rank-0000.safetensors"},
      {"objects.json", "manifest.json"},
      {"objects.json", ".."},
      {"objects.json", ""},
      {"crc32c:9f8e7d6c", "crc32c:9f8e7d6"},
      {"crc32c:9f8e7d6c", "md5:9f8e7d6c"},
      {"\"loss\":0.1", "\"loss\":\"low\""},
      {"\"holdfast\":\"manifest\"", "\"holdfast\":\"index\""},
      {"\"software\":{", "\"software\":{\"a\":1,"}};
  for (const auto& [what, by] : changes) {
    EXPECT_ERROR(decode_manifest(sealed(replaced(what, by)), "m"), ErrorCode::kCorrupt);
  }
}

TEST(Manifest, OnlyATemporaryStepIsOfVersion2) {
  Manifest manifest = example();
  EXPECT_NE(text_of(encode_manifest(manifest)).find("\"version\":1"), std::string::npos);
  manifest.temporary = true;
  const Bytes bytes = encode_manifest(manifest);
  EXPECT_NE(text_of(bytes).find("\"version\":2"), std::string::npos);
  EXPECT_EQ(decode_manifest(bytes, "m").value(), manifest);
}

TEST(Manifest, SaysThatANewerVersionIsNotSupported) {
  EXPECT_ERROR(decode_manifest(
                   sealed(replaced("\"version\":1", "\"version\":3,\"new\":[]")), "m"),
               ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace holdfast::manifest_test
