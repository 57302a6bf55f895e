#include "holdfast/formats/dcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holdfast/base/json.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/dcp_internal.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/torch_zip_testing.h"

namespace holdfast::dcp_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tests::expect_same_tensors;
using tests::random_contents;

const Path kAttackFolder = Path(HOLDFAST_TORCH_ATTACKS) / "dcp";
const Path kDcpFixtures = HOLDFAST_DCP_FIXTURES;

Json read_json(const Path& path) {
  return parse_json(text_of(read_whole(path)), path.native()).value();
}

Object text(const char* value) { return Object(std::string(value)); }
Object leaf(const char* name) { return Object(Object::TensorName{name}); }

// Puts an attack together, as its generator says.
void put_attack(MemoryEnv& env, const std::string& name) {
  const Path own = kAttackFolder / (name + ".distcp");
  const Path items = std::filesystem::exists(own) ? own : kAttackFolder / "good.distcp";
  ASSERT_OK(env.create_folder("f"));
  ASSERT_OK(
      env.write_file("f/.metadata", read_whole(kAttackFolder / (name + ".metadata"))));
  ASSERT_OK(env.write_file("f/__0_0.distcp", read_whole(items)));
}

TEST(DcpAttackTest, EveryHostileFolderIsRefusedByItsSentence) {
  const Json expected = read_json(kAttackFolder / "expected.json");
  EXPECT_GE(expected.size(), 60U);
  for (const auto& [name, part] : expected.items()) {
    SCOPED_TRACE(name);
    MemoryEnv env;
    put_attack(env, name);
    const auto opened = open_file(env, "f");
    const auto report = verify_dcp(env, "f", {});
    if (part == "") {
      EXPECT_OK(opened);
      ASSERT_OK(report);
      EXPECT_TRUE(report->damage.empty());
      continue;
    }
    ASSERT_FALSE(opened.ok());
    EXPECT_TRUE(opened.error().code() == ErrorCode::kCorrupt ||
                opened.error().code() == ErrorCode::kUnsupported);
    EXPECT_THAT(opened.error().message(), HasSubstr(part.get<std::string>()));
    EXPECT_LT(opened.error().message().size(), 500U);
    EXPECT_TRUE(!report.ok() || !report->damage.empty());
  }
}

TEST(DcpAttackTest, WhatIsOddIsLeftOutByNameAndTheRestIsReadAndVerified) {
  const Json expected = read_json(kAttackFolder / "odd.json");
  EXPECT_GE(expected.size(), 8U);
  for (const auto& [name, lines] : expected.items()) {
    SCOPED_TRACE(name);
    MemoryEnv env;
    put_attack(env, name);
    const auto opened = open_dcp(env, "f");
    ASSERT_OK(opened);
    ASSERT_EQ(opened->left_out.size(), lines.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_THAT(opened->left_out[i], HasSubstr(lines[i].get<std::string>()));
    }
    ASSERT_EQ(opened->collection.tensors().size(), 1U);
    EXPECT_EQ(tests::canonical_bytes(*opened, *opened->collection.find("good")),
              Bytes(16));
    const auto report = verify_dcp(env, "f", {});
    ASSERT_OK(report);
    EXPECT_TRUE(report->damage.empty());
    // A compressed item cannot be checked.
    EXPECT_EQ(report->checked, name.find("zstd") == name.npos);
    const auto patch = [&](const std::string& tensor) {
      Flip flip{.tensor = tensor};
      flip.mask[0] = std::byte{1};
      return plan_dcp_patch(env, "f", std::span(&flip, 1), Checksums::kConsistent);
    };
    EXPECT_ERROR(patch("w"), ErrorCode::kUnsupported);
    EXPECT_OK(patch("good"));
  }
}

TEST(DcpAttackTest, DamageOfWhatIsLeftOutIsFound) {
  MemoryEnv env;
  put_attack(env, "an_unknown_dtype");
  Bytes items = env.read_file("f/__0_0.distcp").value();
  const std::string_view text = text_of(items);
  // The elements of "w", which is the first item, are zeros behind the name of their record.
  const size_t at = text.find("data/0");
  ASSERT_NE(at, text.npos);
  const size_t zeros = text.find(std::string(16, '\0'), at);
  items[zeros + 8] ^= std::byte{1};
  ASSERT_OK(env.write_file("f/__0_0.distcp", items));
  const auto report = verify_dcp(env, "f", {});
  ASSERT_OK(report);
  ASSERT_EQ(report->damage.size(), 1U);
  EXPECT_THAT(report->damage[0].tensors, ElementsAre("w"));
}

TEST(DcpAttackTest, WhatIsUnusualButGoodIsUnderstood) {
  MemoryEnv good, tie, pair;
  put_attack(good, "good");
  const auto opened = open_dcp(good, "f");
  ASSERT_OK(opened);
  EXPECT_EQ(describe(opened->objects),
            describe(Object(Object::Dict{
                {{text("model"), Object(Object::Dict{{{text("w"), leaf("w")}}})},
                 {text("list"),
                  Object(Object::List{{Object(), Object(), Object(int64_t{7})}})}}})));
  put_attack(tie, "good_tie");
  const auto tied = open_dcp(tie, "f");
  ASSERT_OK(tied);
  EXPECT_TRUE(tied->objects.none());
  ASSERT_EQ(tied->collection.tensors().size(), 1U);
  EXPECT_THAT(tied->collection.tensor(0).aliases, ElementsAre("v"));
  put_attack(pair, "good_tuple_with_a_tensor");
  const auto tuple = open_dcp(pair, "f");
  ASSERT_OK(tuple);
  EXPECT_EQ(tuple->collection.tensor(0).name, "w.0");
  EXPECT_EQ(describe(tuple->objects),
            describe(Object(Object::Dict{
                {{text("w"), Object(Object::Tuple{{leaf("w.0"), text("and")}})}}})));
}

TEST(DcpTest, FoldersOfTorchAreReadAsTheyWereSaved) {
  const auto env = make_posix_env();
  const Json folders = read_json(kDcpFixtures / "expected.json");
  EXPECT_EQ(folders.size(), 5U);
  for (const auto& [folder, expected] : folders.items()) {
    SCOPED_TRACE(folder);
    const auto contents = open_file(*env, kDcpFixtures / folder);
    ASSERT_OK(contents);
    EXPECT_EQ(contents->collection.tensors().size(), expected["tensors"].size());
    for (const auto& [name, of] : expected["tensors"].items()) {
      const auto found = contents->collection.find(name);
      ASSERT_TRUE(found) << name;
      const Tensor& tensor = contents->collection.tensor(*found);
      EXPECT_EQ(name_of(tensor.dtype), of["dtype"].get<std::string>()) << name;
      EXPECT_EQ(Json(tensor.shape.sizes()), of["shape"]) << name;
      EXPECT_EQ(to_hex(tests::canonical_bytes(*contents, *found)),
                of["hex"].get<std::string>())
          << name;
    }
    EXPECT_EQ(describe(contents->objects), expected["objects"].get<std::string>());
    const auto report = verify_dcp(*env, kDcpFixtures / folder, {});
    ASSERT_OK(report);
    EXPECT_TRUE(report->damage.empty() && report->checked);
    MemoryEnv disk;
    ASSERT_OK(write_dcp(disk, "again", *contents));
    const auto again = open_dcp(disk, "again");
    ASSERT_OK(again);
    expect_same_tensors(*again, *contents);
    EXPECT_TRUE(again->objects == contents->objects);
  }
}

// A state dict with all that DCP cannot hold as it is.
Contents odd_contents() {
  Contents contents = random_contents(
      {{.name = "w",
        .dtype = Dtype::kF32,
        .shape = {3},
        .aliases = {"tied", "model.w"}},
       {.name = "empty", .dtype = Dtype::kF32, .shape = {0, 2}, .aliases = {"none"}},
       {.name = "holdfast.objects", .dtype = Dtype::kF32},
       {.name = "entry.0", .dtype = Dtype::kU8},
       {.name = "a.b", .dtype = Dtype::kI16, .shape = {2}},
       {.name = "moment", .dtype = Dtype::kF64}});
  contents.metadata = {{"key", "value"}};
  contents.objects = Object(Object::Dict{
      {{text("model"), Object(Object::Dict{{{text("w"), leaf("model.w")}}})},
       {text("a"), Object(Object::Dict{{{text("b"), Object(int64_t{5})}}})},
       {Object(int64_t{1}), Object(1.5)},
       {text("1"), Object(Object::Dict{{{text("c"), Object()}}})},
       {text("pair"), Object(Object::Tuple{{leaf("moment"), Object(true)}})},
       {text("plain"), Object(Object::Tuple{{Object(0.9), Object(0.99)}})},
       {text("list"), Object(Object::List{{Object(Object::Dict{}), leaf("w")}})},
       {Object(int64_t{7}), Object(true)},  // behind a list, and no index of it
       {text("nothing"), Object(Object::Dict{})}}});
  return contents;
}

TEST(DcpTest, WhatDcpCannotHoldIsKeptBeside) {
  const Contents contents = odd_contents();
  MemoryEnv disk;
  ASSERT_OK(write_dcp(disk, "out", contents));
  const auto opened = open_dcp(disk, "out");
  ASSERT_OK(opened);
  expect_same_tensors(*opened, contents);
  EXPECT_EQ(describe(opened->objects), describe(contents.objects));
  EXPECT_EQ(opened->metadata, contents.metadata);
  const auto metadata = dcp::read_metadata(disk, "out");
  ASSERT_OK(metadata);
  std::map<std::string, const dcp::Entry*> entries;
  for (const dcp::Entry& entry : metadata->entries) entries[entry.name] = &entry;
  // torch finds each name, and a tensor with several names is stored once.
  ASSERT_TRUE(entries.contains("model.w") && entries.contains("tied"));
  EXPECT_EQ(entries["model.w"]->chunks, entries["tied"]->chunks);
  EXPECT_TRUE(entries.contains("pair.0") && entries.contains("plain"));
  EXPECT_TRUE(entries.contains("7"));
  EXPECT_TRUE(entries.contains("holdfast.objects"));
}

TEST(DcpTest, ANestedStateDictNeedsNothingBeside) {
  Contents contents = random_contents({{.name = "model.w", .dtype = Dtype::kF32},
                                       {.name = "list.1", .dtype = Dtype::kF32}});
  contents.objects = Object(Object::Dict{
      {{text("model"), Object(Object::Dict{{{text("w"), leaf("model.w")}}})},
       {text("list"), Object(Object::List{{Object(Object::Dict{}), leaf("list.1")}})},
       {text("step"), Object(int64_t{4})},
       {text("none"), Object()},
       {text("betas"), Object(Object::Tuple{{Object(0.9), Object(0.99)}})}}});
  MemoryEnv disk;
  ASSERT_OK(write_dcp(disk, "out", contents));
  for (const dcp::Entry& entry : dcp::read_metadata(disk, "out").value().entries) {
    EXPECT_FALSE(entry.name.starts_with("holdfast.")) << entry.name;
  }
  const auto opened = open_dcp(disk, "out");
  ASSERT_OK(opened);
  EXPECT_EQ(describe(opened->objects), describe(contents.objects));
}

TEST(DcpTest, DamageIsNamedByFileBytesAndTensor) {
  const Contents contents = random_contents(
      {{.name = "a", .dtype = Dtype::kF32, .shape = {2}, .aliases = {"b"}},
       {.name = "c", .dtype = Dtype::kU8, .shape = {70}}});
  MemoryEnv disk;
  ASSERT_OK(write_dcp(disk, "out", contents));
  const auto opened = open_dcp(disk, "out");
  ASSERT_OK(opened);
  Bytes bytes = disk.read_file("out/__0_0.distcp").value();
  std::vector<int64_t> offsets;
  for (const char* name : {"a", "c"}) {
    const TensorId id = opened->collection.find(name).value();
    const PieceId piece = opened->collection.layout().slices(id)[0].first;
    offsets.push_back(opened->collection.layout().map(piece, 1).offset);
    bytes[static_cast<size_t>(offsets.back())] ^= std::byte{4};
  }
  ASSERT_OK(disk.write_file("out/__0_0.distcp", bytes));
  const auto report = verify_dcp(disk, "out", {});
  ASSERT_OK(report);
  ASSERT_EQ(report->damage.size(), 2U);
  EXPECT_EQ(report->damage[0].file, "__0_0.distcp");
  EXPECT_THAT(report->damage[0].tensors, ElementsAre("a"));
  EXPECT_EQ(report->damage[0].offset, offsets[0]);
  EXPECT_EQ(report->damage[0].bytes, 8);
  EXPECT_THAT(report->damage[0].what, HasSubstr("archive/data/0 has crc"));
  EXPECT_THAT(report->damage[1].tensors, ElementsAre("c"));
  EXPECT_EQ(report->damage[1].offset, offsets[1]);
  ASSERT_OK(disk.remove_file("out/__0_0.distcp"));
  const auto missing = verify_dcp(disk, "out", {});
  ASSERT_OK(missing);
  EXPECT_THAT(missing->damage.at(0).what, HasSubstr("is missing"));
}

// A rank that has nothing of a tensor has written an item that is never read.
TEST(DcpTest, AFileThatWasCutAnywhereIsRefused) {
  const auto disk = make_posix_env();
  MemoryEnv env;
  ASSERT_OK(env.create_folder("f"));
  const auto names = disk->list(kDcpFixtures / "sharded");
  ASSERT_OK(names);
  for (const std::string& name : *names) {
    const Bytes bytes = read_whole(kDcpFixtures / "sharded" / name);
    ASSERT_OK(env.write_file(Path("f") / name, bytes));
  }
  ASSERT_OK(open_dcp(env, "f"));
  for (const std::string& name : *names) {
    const Bytes bytes = env.read_file(Path("f") / name).value();
    for (size_t left = 1; left < bytes.size(); left += 97) {
      ASSERT_OK(env.write_file(Path("f") / name, ByteView(bytes).first(left)));
      SCOPED_TRACE(fmt::format("{} cut to {}", name, left));
      EXPECT_ERROR(open_dcp(env, "f"), ErrorCode::kCorrupt);
    }
    ASSERT_OK(env.write_file(Path("f") / name, bytes));
  }
}

TEST(DcpTest, AFolderWithItemsIsNotTakenForOneOfSafetensors) {
  const std::vector<std::string> items{".metadata", "__0_0.distcp", "x.safetensors"};
  const std::vector<std::string> other{".metadata", "model.safetensors"};
  EXPECT_TRUE(is_dcp_folder(items));
  EXPECT_FALSE(is_dcp_folder(other));
}

}  // namespace
}  // namespace holdfast::dcp_test
