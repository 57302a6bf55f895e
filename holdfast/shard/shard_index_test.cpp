#include "holdfast/shard/shard_index.h"

#include "holdfast/base/crc32c.h"
#include "holdfast/base/testing.h"

namespace holdfast::shard_index_test {
namespace {

// A shard with a header, a tensor in two pieces and a scalar; and an older shard.
ShardIndex example() {
  ShardIndex index;
  index.files = {{.name = "rank-0000.safetensors",
                  .bytes = 100,
                  .chunks = {{0, 20, 0x01020304}, {20, 80, 0xfffefdfc}}},
                 {.name = "step-00000300.rank-0000.safetensors",
                  .bytes = 60,
                  .chunks = {{0, 60, 7}}}};
  index.tensors = {{.name = "layer.\"0\"/w\xc3\xa9",
                    .dtype = Dtype::kF32,
                    .shape = {4, 4},
                    .role = Role::kSlot,
                    .of = "w",
                    .aliases = {"head", "tail"},
                    .pad_multiple = 128},
                   {.name = "step", .dtype = Dtype::kI64, .shape = {}},
                   {.name = "empty", .dtype = Dtype::kBf16, .shape = {0, 7}}};
  index.pieces = {{.tensor = 0,
                   .box = {{0, 2}, {0, 4}},
                   .offset = 20,
                   .seal = {.lanes = {~uint64_t{0}, 1}, .bytes = 32},
                   .xxh3 = Digest128{.high = 5, .low = 6}},
                  {.tensor = 0, .box = {{2, 4}, {0, 4}}, .offset = 52},
                  {.tensor = 1, .box = {}, .offset = 84, .seal = {.bytes = 8}},
                  {.tensor = 2, .box = {{0, 0}, {0, 7}}, .offset = 100}};
  return index;
}

std::string text() { return std::string(text_of(encode_shard_index(example()))); }

TEST(ShardIndex, ReadsBackWhatWasWritten) {
  const Result<ShardIndex> read = decode_shard_index(bytes_of(text()), "i");
  ASSERT_OK(read);
  EXPECT_EQ(*read, example());
}

TEST(ShardIndex, CombinesTheDigestsOfItsChunks) {
  const Bytes bytes = copy_of(bytes_of("a header, then the data of a tensor"));
  const ByteView view(bytes);
  const ShardFile file{.name = "f",
                       .bytes = static_cast<int64_t>(bytes.size()),
                       .chunks = {{0, 10, crc32c(view.first(10))},
                                  {10, static_cast<int64_t>(bytes.size()) - 10,
                                   crc32c(view.subspan(10))}}};
  EXPECT_EQ(combined_crc(file), crc32c(bytes));
  EXPECT_EQ(combined_crc({.name = "f"}), 0u);
}

TEST(ShardIndex, RefusesEveryTruncation) {
  const std::string good = text();
  for (size_t size = 0; size + 1 < good.size(); ++size) {  // the last byte is a newline
    ASSERT_FALSE(decode_shard_index(bytes_of(good.substr(0, size)), "i").ok()) << size;
  }
}

TEST(ShardIndex, NoBitFlipLeadsAstray) {
  const Bytes good = encode_shard_index(example());
  for (size_t i = 0; i < good.size() * 8; ++i) {
    Bytes bad = good;
    bad[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
    (void)decode_shard_index(bad, "i");  // must not read out of bounds
  }
}

TEST(ShardIndex, RefusesWhatMakesNoSense) {
  const std::pair<const char*, const char*> changes[] = {
      {"[20,\"01020304\"]", "[19,\"01020304\"]"},
      {"[20,\"01020304\"]", "[0,\"01020304\"]"},
      {"[20,\"01020304\"]", "[-20,\"01020304\"]"},
      {"[20,\"01020304\"]", "[120,\"01020304\"]"},
      {"[20,\"01020304\"]", "[20,\"0102030\"]"},
      {"[20,\"01020304\"]", "[20,\"0102030405\"]"},
      {"[20,\"01020304\"]", "[20,\"0102030G\"]"},
      {"rank-0000.safetensors\",100", "rank-0000.safetensors\",101"},
      {"rank-0000.safetensors\",100", "../rank\",100"},
      {"step-00000300.rank", "rank"},
      {"\"F32\"", "\"F33\""},
      {"[4,4]", "[4,-4]"},
      {"[4,4]", "[4,4,1,1,1,1,1,1,1]"},
      {"[4,4]", "[4611686018427387904,4611686018427387904]"},
      {"\"slot\"", "\"slit\""},
      {"\"step\"", "\"empty\""},
      {"[0,0,20,", "[3,0,20,"},
      {"[0,0,20,", "[0,2,20,"},
      {"[0,0,20,", "[0,0,19,"},
      {"[0,0,52,", "[0,0,69,"},
      {"[0,0,52,", "[0,0,9223372036854775807,"},
      {"[2,4,0,4]", "[2,5,0,4]"},
      {"[2,4,0,4]", "[4,2,0,4]"},
      {"[2,4,0,4]", "[2,4,0]"},
      {"[2,4,0,4]", "[2,4]"},
      {"ffffffffffffffff0000000000000001", "ffffffffffffffff000000000000000"},
      {"\"00000000000000050000000000000006\"", "5"},
      {"\"version\":1", "\"version\":1,\"more\":1"},
      {"shard index", "shard"},
      {"\"tensors\":", "\"tonsors\":"}};
  for (const auto& [what, by] : changes) {
    std::string bad = text();
    const size_t at = bad.find(what);
    ASSERT_NE(at, bad.npos) << what;
    bad.replace(at, std::string_view(what).size(), by);
    EXPECT_ERROR(decode_shard_index(bytes_of(bad), "i"), ErrorCode::kCorrupt);
  }
}

TEST(ShardIndex, RefusesAChunkThatIsTooLongToReadAtOnce) {
  ShardIndex index = example();
  index.files[0].bytes = 20 + kChunkBytes + 1;
  index.files[0].chunks[1].bytes = kChunkBytes + 1;
  EXPECT_ERROR(decode_shard_index(encode_shard_index(index), "i"), ErrorCode::kCorrupt);
}

TEST(ShardIndex, SaysThatANewerVersionIsNotSupported) {
  std::string newer = text();
  newer.replace(newer.find("\"version\":1"), 11, "\"version\":2");
  EXPECT_ERROR(decode_shard_index(bytes_of(newer), "i"), ErrorCode::kUnsupported);
}

TEST(ShardIndexDeathTest, ANameThatIsNotUtf8IsABug) {
  ShardIndex index = example();
  index.tensors[0].name = "\xff";
  EXPECT_DEATH((void)encode_shard_index(index), "UTF-8");
}

TEST(ShardIndex, TakesManyPieces) {
  ShardIndex index;
  index.files = {{.name = "rank-0000.safetensors", .bytes = 0, .chunks = {}}};
  for (uint32_t i = 0; i < 10'000; ++i) {
    index.tensors.push_back(
        {.name = fmt::format("layers.{}.weight", i), .shape = {0, 32}});
    index.pieces.push_back({.tensor = i, .box = {{0, 0}, {0, 32}}});
  }
  const Result<ShardIndex> read = decode_shard_index(encode_shard_index(index), "i");
  ASSERT_OK(read);
  EXPECT_EQ(*read, index);
}

}  // namespace
}  // namespace holdfast::shard_index_test
