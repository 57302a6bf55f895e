#include "holdfast/store/step_check.h"

#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/store/manifest.h"
#include "holdfast/store/store_testing.h"

namespace holdfast {
namespace {

class WholeTest : public testing::Test {
 protected:
  WholeTest()
      : run(holdfast::Run::create_or_open(disk, kTestRun).value()),
        owner(run.acquire(test_process(1), {.alive = nobody_lives()}).value()),
        folder(save_tiny(run, owner, 1, 1).value()) {}

  StepReport check(Depth depth) {
    Result<StepReport> report = check_step(disk, folder, depth);
    EXPECT_OK(report);
    return *report;
  }
  void flip(const std::string& file, size_t bit) {
    Bytes bytes = disk.read_file(folder / file).value();
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_OK(disk.write_file(folder / file, bytes));
  }

  MemoryEnv disk;
  holdfast::Run run;
  Owner owner;
  const Path folder;
  const std::string shard = "rank-0000.safetensors";
};

TEST_F(WholeTest, AnUntouchedStepIsWhole) {
  for (const Depth depth : {Depth::kFast, Depth::kFull}) {
    const StepReport report = check(depth);
    EXPECT_TRUE(report.whole());
    EXPECT_TRUE(report.extra.empty());
    EXPECT_EQ(report.manifest->step, 1);
  }
}

TEST_F(WholeTest, EveryBitOfEveryFileIsCovered) {
  for (const std::string& name : disk.list(folder).value()) {
    const size_t bits = disk.read_file(folder / name).value().size() * 8;
    for (size_t bit = 0; bit<bits; bit += bits> 4'000 ? 61 : 11) {
      flip(name, bit);
      ASSERT_FALSE(check(Depth::kFull).whole()) << name << " bit " << bit;
      ASSERT_EQ(check(Depth::kFast).whole(), name == shard) << name << " bit " << bit;
      flip(name, bit);
    }
  }
  EXPECT_TRUE(check(Depth::kFull).whole());
}

TEST_F(WholeTest, EveryTruncationOfEveryFileIsSeenFast) {
  for (const std::string& name : disk.list(folder).value()) {
    const Bytes good = disk.read_file(folder / name).value();
    for (size_t size = 0; size < good.size(); size += 1 + good.size() / 50) {
      ASSERT_OK(disk.write_file(folder / name, ByteView(good).first(size)));
      ASSERT_FALSE(check(Depth::kFast).whole()) << name << " " << size;
    }
    ASSERT_OK(disk.write_file(folder / name, good));
  }
}

TEST_F(WholeTest, DamageNamesFileTensorChunkAndBytes) {
  flip(shard, (512 + 700 + 5) * 8);
  const StepReport report = check(Depth::kFull);
  ASSERT_EQ(report.damage.size(), 1u);
  const Damage& damage = report.damage[0];
  EXPECT_EQ(damage.file, shard);
  EXPECT_EQ(damage.tensors, std::vector<std::string>{"big"});
  EXPECT_EQ(damage.chunk, 2);
  EXPECT_EQ(damage.offset, 512 + 700);
  EXPECT_EQ(damage.bytes, 300);
  EXPECT_NE(to_string(damage).find("chunk 2 (bytes 1212 to 1512; big) has crc"),
            std::string::npos)
      << to_string(damage);
}

TEST_F(WholeTest, AChunkOfSmallTensorsNamesThemAllAndTheHeaderNone) {
  flip(shard, 1512 * 8);
  flip(shard, 3);
  const StepReport report = check(Depth::kFull);
  ASSERT_EQ(report.damage.size(), 2u);
  EXPECT_EQ(report.damage[0].chunk, 0);
  EXPECT_TRUE(report.damage[0].tensors.empty());
  EXPECT_EQ(report.damage[1].tensors, (std::vector<std::string>{"b", "w"}));
}

TEST_F(WholeTest, MissingCutLongAndExtraFilesAreEachNamed) {
  ASSERT_OK(disk.remove_file(folder / "objects.json"));
  Bytes longer = disk.read_file(folder / shard).value();
  longer.push_back({});
  ASSERT_OK(disk.write_file(folder / shard, longer));
  ASSERT_OK(disk.write_file(folder / "rank-0000.index.json", bytes_of("{}")));
  ASSERT_OK(disk.write_file(folder / "notes.txt", bytes_of("mine")));
  const StepReport report = check(Depth::kFast);
  std::map<std::string, std::string> what;
  for (const Damage& damage : report.damage) what[damage.file] = damage.what;
  EXPECT_EQ(what["objects.json"], "is missing");
  EXPECT_EQ(what[shard].substr(0, 11), "is too long");
  EXPECT_EQ(what["rank-0000.index.json"].substr(0, 12), "is cut short");
  EXPECT_EQ(report.extra, std::vector<std::string>{"notes.txt"});
}

TEST_F(WholeTest, AnExtraFileAloneDoesNoHarm) {
  ASSERT_OK(disk.write_file(folder / "notes.txt", bytes_of("mine")));
  EXPECT_TRUE(check(Depth::kFull).whole());
}

TEST_F(WholeTest, AShardOfAnotherAttemptIsNotTakenForTheRightOne) {
  const Path other = save_tiny(run, owner, 2, 2).value();
  for (const std::string& name : {shard, std::string("rank-0000.index.json")}) {
    const Bytes good = disk.read_file(folder / name).value();
    ASSERT_OK(disk.write_file(folder / name, *disk.read_file(other / name)));
    EXPECT_FALSE(check(Depth::kFull).whole()) << name;
    ASSERT_OK(disk.write_file(folder / name, good));
  }
}

TEST_F(WholeTest, WithoutAnIndexTheShardIsStillChecked) {
  flip("rank-0000.index.json", 99);
  EXPECT_EQ(check(Depth::kFull).damage.size(), 1u);
  flip(shard, 5000);
  const StepReport report = check(Depth::kFull);
  ASSERT_EQ(report.damage.size(), 2u);
  EXPECT_EQ(report.damage[1].file, shard);
}

TEST_F(WholeTest, AnIndexThatDescribesAnotherShardIsDamage) {
  TinyStep tiny = tiny_step(3);
  Attempt attempt = Attempt::begin(run, owner, 3, 33).value();
  std::vector<ManifestFile> files = write_tiny(disk, attempt, 3).value();
  tiny.index.files[0].chunks[1].crc ^= 1;
  ASSERT_OK(disk.remove_file(attempt.folder() / "rank-0000.index.json"));
  files[1] =
      attempt.put_file("rank-0000.index.json", encode_shard_index(tiny.index)).value();
  const Path third = attempt.commit({.files = files}).value();
  const Result<StepReport> report = check_step(disk, third, Depth::kFull);
  ASSERT_EQ(report->damage.size(), 1u);
  EXPECT_EQ(report->damage[0].file, "rank-0000.index.json");
}

TEST_F(WholeTest, WhatCannotBeReadIsDamageAndTheRestIsStillChecked) {
  FaultyEnv env(disk);
  const Result<StepReport> good = check_step(env, folder, Depth::kFull);
  const int64_t calls = env.calls();
  for (int64_t k = 2; k <= calls; ++k) {
    FaultyEnv sick(disk);
    sick.fail_at(Op::kAny, k);
    const Result<StepReport> report = check_step(sick, folder, Depth::kFull);
    ASSERT_OK(report);
    // A direct read that fails is repeated through the cache.
    EXPECT_LE(report->damage.size(), 1u) << k;
  }
  FaultyEnv gone(disk);
  gone.fail_from(Op::kRead, 4);
  EXPECT_FALSE(check_step(gone, folder, Depth::kFull)->whole());
}

// Each piece of this index has all bytes of the shard, so that each damaged chunk is in
// all tensors. To name them all would take the square of the size of the index.
TEST_F(WholeTest, AForgedIndexDoesNotTakeTheSquareOfItsSize) {
  constexpr int64_t kMany = 2500;
  ShardIndex index;
  index.files.resize(1);
  index.files[0].name = shard;
  index.files[0].bytes = kMany;
  for (int64_t i = 0; i < kMany; ++i) {
    index.files[0].chunks.push_back({.offset = i, .bytes = 1, .crc = 1});
    index.tensors.push_back(
        {.name = fmt::format("t{}", i), .dtype = Dtype::kU8, .shape = {kMany - 1}});
    index.pieces.push_back({.tensor = static_cast<uint32_t>(i),
                            .box = Box::whole({kMany - 1}),
                            .file = 0,
                            .offset = 1});  // behind the header
  }
  const Bytes text = encode_shard_index(index);
  ASSERT_OK(disk.write_file(folder / shard, Bytes(kMany)));
  ASSERT_OK(disk.write_file(folder / "rank-0000.index.json", text));
  Manifest manifest = read_manifest(disk, folder).value();
  for (ManifestFile& file : manifest.files) {
    if (file.name == shard) {
      file.bytes = kMany;
      file.digest = crc_digest(combined_crc(index.files[0]));
    } else if (is_index_name(file.name)) {
      file.bytes = std::ssize(text);
      file.digest = xxh3_digest(text);
    }
  }
  ASSERT_OK(disk.write_file(folder / kManifestName, encode_manifest(manifest)));
  const StepReport report = check(Depth::kFull);
  EXPECT_EQ(report.damage.size(), size_t{kMany});
  size_t named = 0;
  for (const Damage& damage : report.damage) named += damage.tensors.size();
  EXPECT_GT(named, size_t{kMany});
  EXPECT_LE(named, size_t{4'000'000 + kMany});
}

TEST_F(WholeTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_ERROR(check_step(disk, folder / "no", Depth::kFast), ErrorCode::kNotFound);
}

TEST_F(WholeTest, ProgressEndsAtTheTotal) {
  int64_t last = -1, total = 0;
  ASSERT_OK(check_step(disk, folder, Depth::kFull, [&](int64_t done, int64_t of) {
    EXPECT_GT(done, last);
    last = done, total = of;
  }));
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, 512 + 1000 + 104);
}

// The boundaries of read blocks, of chunks and of the file are all different.
TEST(WholeOnDisk, AShardOfManyBlocksIsCheckedToItsLastByte) {
  const TempFolder temp;
  const auto env = make_posix_env();
  const holdfast::Run run =
      holdfast::Run::create_or_open(*env, temp.path() / "run").value();
  const Owner owner = run.acquire(this_process(*env).value()).value();
  Bytes bytes(size_t{21} << 20);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  }
  bytes.resize(bytes.size() - 4097 - 13);
  ShardIndex index;
  ShardFile file{.name = "rank-0000.safetensors",
                 .bytes = static_cast<int64_t>(bytes.size())};
  for (int64_t at = 0; at < file.bytes;) {
    const int64_t size =
        std::min(at == 0 ? 5'000'000 : kChunkBytes - 7, file.bytes - at);
    file.chunks.push_back({at, size,
                           crc32c(ByteView(bytes).subspan(static_cast<size_t>(at),
                                                          static_cast<size_t>(size)))});
    at += size;
  }
  index.files = {file};
  Attempt attempt = Attempt::begin(run, owner, 1, 1).value();
  ASSERT_OK(env->write_file(attempt.folder() / file.name, bytes));
  Manifest manifest{.files = {{file.name, file.bytes, crc_digest(combined_crc(file))}}};
  manifest.files.push_back(
      attempt.put_file("rank-0000.index.json", encode_shard_index(index)).value());
  const Path folder = attempt.commit(manifest).value();
  EXPECT_TRUE(check_step(*env, folder, Depth::kFull)->whole());
  bytes.back() ^= std::byte{1};
  ASSERT_OK(env->write_file(folder / file.name, bytes));
  const Result<StepReport> report = check_step(*env, folder, Depth::kFull);
  ASSERT_EQ(report->damage.size(), 1u);
  EXPECT_EQ(report->damage[0].chunk, static_cast<int64_t>(file.chunks.size()) - 1);
}

}  // namespace
}  // namespace holdfast
