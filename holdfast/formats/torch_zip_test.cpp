#include "holdfast/formats/torch_zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/patch_testing.h"
#include "holdfast/formats/torch_zip_testing.h"

namespace holdfast::torch_zip_test {
namespace {

using testing::HasSubstr;

const Path kFixtures = HOLDFAST_TORCH_FIXTURES;

std::map<std::string, std::vector<std::string>> expected_lines() {
  std::map<std::string, std::vector<std::string>> by_file;
  std::ifstream file(kFixtures / "expected.txt");
  for (std::string line; std::getline(file, line);) {
    by_file[line.substr(0, line.find('\t'))].push_back(line);
  }
  return by_file;
}

Bytes written(const Contents& contents) {
  MemorySink sink;
  const auto result = write_torch(sink, contents);
  HOLDFAST_CHECK(result.ok(), "{}", result.error().message());
  return std::move(sink).take_bytes();
}

// Tensors over the same memory, which has the bytes 0, 1, 2, ...
Contents contents_of(std::vector<Tensor> tensors, Object objects = {}) {
  LayoutBuilder builder(tensors, {{.name = "m", .kind = HolderKind::kFile}});
  int64_t end = 0;
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), 0, end);
    end += tensors[t].bytes();
  }
  Bytes bytes(static_cast<size_t>(end));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  Layout layout = std::move(builder).build().value();
  return {
      .collection = Collection::create(std::move(tensors), std::move(layout)).value(),
      .sources = {source_of(std::move(bytes), "m")},
      .objects = std::move(objects),
      .metadata = {}};
}

Object::Dict dict_of(std::vector<std::pair<Object, Object>> items) {
  return {std::move(items)};
}
Object text(std::string value) { return Object(std::move(value)); }

TEST(TorchZipTest, ReadsEveryFileThatTorchWrote) {
  const auto files = expected_lines();
  EXPECT_EQ(files.size(), 13u);
  for (const auto& [file, lines] : files) {
    const auto contents = open_path(kFixtures / file);
    ASSERT_OK(contents);
    EXPECT_THAT(describe(file, *contents), testing::UnorderedElementsAreArray(lines))
        << file;
    EXPECT_OK(contents->collection.check_covered());
    const auto verified = verify_torch(source_of(read_whole(kFixtures / file)));
    ASSERT_OK(verified);
    EXPECT_TRUE(verified->damage.empty());
  }
}

TEST(TorchZipTest, WhatItReadItWritesAndReadsAgain) {
  for (const auto& [file, lines] : expected_lines()) {
    const auto contents = open_path(kFixtures / file);
    ASSERT_OK(contents);
    const auto source = source_of(written(*contents));
    EXPECT_TRUE(verify_torch(source).value().checked);
    const auto again = open_torch(source);
    ASSERT_OK(again);
    EXPECT_THAT(describe(file, *again), testing::UnorderedElementsAreArray(lines));
    EXPECT_EQ(again->objects, contents->objects);
  }
}

TEST(TorchZipTest, OverlappingViewsLieOnHoldersOfTheSameFile) {
  const auto contents = open_path(kFixtures / "views.pt");
  ASSERT_OK(contents);
  EXPECT_GT(contents->sources.size(), 1u);
  for (const auto& source : contents->sources) {
    EXPECT_EQ(source, contents->sources.front());
  }
  const auto plain = open_path(kFixtures / "training.pt");
  ASSERT_OK(plain);
  EXPECT_EQ(plain->sources.size(), 1u);
}

TEST(TorchZipTest, RecordsBeginAtMultiplesOf64Bytes) {
  const auto contents =
      open_torch(source_of(written(*open_path(kFixtures / "training.pt"))));
  ASSERT_OK(contents);
  const Layout& layout = contents->collection.layout();
  for (PieceId p = 0; p < layout.piece_count(); ++p) {
    EXPECT_EQ(layout.map(p, 1).offset % 64, 0);
  }
}

TEST(TorchZipTest, WritesNamesAsAnOrderedDictWithTies) {
  const Contents contents = contents_of(
      {{.name = "b", .shape = {2, 3}}, {.name = "a.x", .shape = {}, .aliases = {"y"}}});
  const auto again = open_torch(source_of(written(contents)));
  ASSERT_OK(again);
  EXPECT_EQ(describe(again->objects), "{s62:@b,s612e78:@a.x,s79:@y}");
  EXPECT_EQ(again->collection.tensor(1).aliases, std::vector<std::string>{"y"});
  EXPECT_EQ(canonical(*again, "a.x"), canonical(contents, "a.x"));
  EXPECT_EQ(canonical(*again, "b"), canonical(contents, "b"));
}

TEST(TorchZipTest, TensorsWithoutAPlaceGoToTheTopOfTheObjects) {
  const Object objects(
      dict_of({{text("step"), Object(int64_t{7})},
               {text("model"),
                Object(dict_of({{text("w"), Object(Object::TensorName{"w"})}}))}}));
  const Contents contents = contents_of({{.name = "w"}, {.name = "v"}}, objects);
  const auto again = open_torch(source_of(written(contents)));
  ASSERT_OK(again);
  EXPECT_EQ(describe(again->objects),
            "{s73746570:7,s6d6f64656c:{s77:@model.w},s76:@v}");
}

TEST(TorchZipTest, RefusesToWriteWhatTorchCouldNotRead) {
  MemorySink sink;
  const auto write = [&](Object objects, std::vector<Tensor> tensors = {}) {
    return write_torch(sink, contents_of(std::move(tensors), std::move(objects)));
  };
  EXPECT_ERROR(write(Object(Object::TensorName{"nobody"})), ErrorCode::kInvalid);
  EXPECT_ERROR(write(text("\xff")), ErrorCode::kInvalid);
  EXPECT_ERROR(write(text("\xed\xa0\x80")), ErrorCode::kInvalid);
  EXPECT_ERROR(write(Object(Object::BigInteger{"12x"})), ErrorCode::kInvalid);
  EXPECT_ERROR(write(Object(Object::BigInteger{std::string(650, '9')})),
               ErrorCode::kUnsupported);
  EXPECT_ERROR(write(Object(Object::List{}), {{.name = "t"}}), ErrorCode::kInvalid);
  EXPECT_ERROR(write(Object(dict_of({{text("t"), Object()}})), {{.name = "t"}}),
               ErrorCode::kInvalid);
  Object deep;
  for (int i = 0; i < kMaxObjectDepth; ++i) deep = Object(Object::List{{deep}});
  EXPECT_ERROR(write(deep), ErrorCode::kInvalid);
  EXPECT_EQ(sink.size(), 0);
}

TEST(TorchZipTest, AWrongKeyIsNamed) {
  MemorySink sink;
  const auto result = write_torch(
      sink, contents_of({}, Object(dict_of({{text("note"), text("\xff")}}))));
  EXPECT_THAT(message_of(result), HasSubstr("[note]"));
}

TEST(TorchZipTest, EveryCutOfAFileIsAnError) {
  const Bytes whole = read_whole(kFixtures / "tied.pt");
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto opened = open_torch(
        source_of(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size))));
    ASSERT_FALSE(opened.ok()) << size;
  }
}

TEST(TorchZipTest, AFlippedByteOfATensorIsSeenByVerifyAndNamed) {
  Bytes bytes = read_whole(kFixtures / "bare_tensor.pt");
  const auto contents = open_torch(source_of(bytes));
  ASSERT_OK(contents);
  const int64_t at = contents->collection.layout().map(0, 4).offset;
  bytes[static_cast<size_t>(at)] ^= std::byte{1};
  const auto damaged = source_of(bytes);
  EXPECT_OK(open_torch(damaged));
  const auto verified = verify_torch(damaged);
  ASSERT_OK(verified);
  ASSERT_EQ(verified->damage.size(), 1u);
  EXPECT_THAT(verified->damage[0].what, HasSubstr("data/0 has crc"));
  EXPECT_THAT(verified->damage[0].tensors, testing::ElementsAre("tensor"));
  EXPECT_EQ(verified->damage[0].offset, at);
}

// Reads all tensors as convert and diff do. Returns nullopt if one cannot be read.
std::optional<std::vector<std::string>> streamed(const Contents& contents) {
  std::vector<std::string> lines{describe(contents.objects)};
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    const Tensor& tensor = contents.collection.tensor(t);
    Bytes bytes(static_cast<size_t>(tensor.bytes()));
    if (!CanonicalStream(contents, t).read(bytes).ok()) return std::nullopt;
    lines.push_back(fmt::format("{} {} {} {}", tensor.name, name_of(tensor.dtype),
                                to_string(tensor.shape), to_hex(bytes)));
  }
  return lines;
}

TEST(TorchZipTest, EveryFlippedByteIsRefusedOrChangesNothing) {
  for (const char* file : {"tied.pt", "views.pt", "bare_tensor.pt"}) {
    const Bytes whole = read_whole(kFixtures / file);
    const auto wanted = streamed(open_torch(source_of(whole)).value());
    ASSERT_TRUE(wanted.has_value());
    for (size_t at = 0; at < whole.size(); ++at) {
      Bytes bytes = whole;
      bytes[at] ^= std::byte{1} << (at % 8);
      const auto opened = open_torch(source_of(std::move(bytes)));
      if (!opened.ok()) continue;
      const auto seen = streamed(*opened);
      if (!seen.has_value()) continue;
      ASSERT_EQ(*seen, *wanted) << file << ", byte " << at;
    }
  }
}

TEST(TorchZipTest, ADamagedRecordIsCorruptForAWholeTensorAndForAPart) {
  Bytes bytes = read_whole(kFixtures / "bare_tensor.pt");
  const auto whole = open_torch(source_of(bytes));
  ASSERT_OK(whole);
  const Tensor& tensor = whole->collection.tensor(0);
  const int64_t element = bytes_of(tensor.dtype);
  const auto at =
      static_cast<size_t>(whole->collection.layout().map(0, element).offset);
  bytes[at + static_cast<size_t>(tensor.bytes()) - 1] ^= std::byte{1};
  const auto damaged = open_torch(source_of(bytes));
  ASSERT_OK(damaged);
  for (const int64_t count : {tensor.shape.elements(), int64_t{1}}) {
    for (const Box& box : flat_range(Box::whole(tensor.shape), 0, count)) {
      Bytes memory(static_cast<size_t>(box.elements() * element));
      const auto read = read_box(*damaged, 0, box, Map::dense(box, element), memory);
      EXPECT_ERROR(read, ErrorCode::kCorrupt);
      EXPECT_THAT(message_of(read), HasSubstr("data/0 has crc"));
    }
  }
}

TEST(TorchZipTest, VerifySaysThatARecordHasNoCrc) {
  Bytes bytes = read_whole(kFixtures / "bare_tensor.pt");
  const auto last = text_of(bytes).rfind("PK\x01\x02");  // in the directory
  for (size_t i = 0; i < 4; ++i) bytes[last + 16 + i] = std::byte{0};
  const auto verified = verify_torch(source_of(std::move(bytes)));
  ASSERT_OK(verified);
  EXPECT_TRUE(verified->damage.empty());
  EXPECT_FALSE(verified->checked);
}

TEST(TorchZipTest, AThousandTensorsAndRangesOfThem) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 1000; ++i) {
    tensors.push_back({.name = fmt::format("layer.{}", i), .shape = {i % 5, 3}});
  }
  const Contents contents = contents_of(tensors);
  const auto again = open_torch(source_of(written(contents)));
  ASSERT_OK(again);
  for (const Tensor& tensor : tensors) {
    ASSERT_EQ(canonical(*again, tensor.name), canonical(contents, tensor.name));
  }
  Bytes part(5);
  ASSERT_OK(read_canonical(*again, 4, 3, part));
  const Bytes whole = canonical(contents, "layer.4");
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 3));
}

#ifdef HOLDFAST_TORCH_PYTHON
// Checks all files in one process, because importing torch takes most of the time.
// check_written.py says what is checked.
TEST(TorchZipInteropTest, TorchReadsWhatWeWrote) {
  const TempFolder folder;
  const auto env = make_posix_env();
  std::string command = fmt::format("'{}' '{}'", HOLDFAST_TORCH_PYTHON,
                                    (kFixtures / "check_written.py").native());
  for (const auto& [name, lines] : expected_lines()) {
    const auto contents = open_path(kFixtures / name);
    ASSERT_OK(contents);
    const Path file = folder.path() / name;
    ASSERT_OK(env->write_file(file, written(*contents)));
    std::string want;
    for (const std::string& line : describe("f", *contents)) want += line + "\n";
    ASSERT_OK(env->write_file(file.native() + ".txt", bytes_of(want)));
    command += fmt::format(" '{}'", file.native());
  }
  // torch reads a patched file with its changed bits, and does so whether the checksums
  // are right or not. Only zipfile notices a raw patch.
  std::string want;
  for (const bool raw : {false, true}) {
    const Path file = folder.path() / (raw ? "patched.raw.pt" : "patched.pt");
    ASSERT_OK(env->write_file(file, read_whole(kFixtures / "training.pt")));
    const Contents before = open_path(file).value();
    tests::Dice dice(3);
    const auto patch =
        plan_torch_patch(*env, file, tests::random_flips(dice, before, 200),
                         raw ? Checksums::kRaw : Checksums::kConsistent);
    ASSERT_OK(patch);
    ASSERT_OK(apply_patch(*env, *patch));
    if (!raw) {
      for (const auto& line : describe("f", open_path(file).value()))
        want += line + "\n";
    }
    ASSERT_OK(env->write_file(file.native() + ".txt", bytes_of(want)));
    command += fmt::format(" '{}'", file.native());
  }
  EXPECT_EQ(std::system(command.c_str()), 0);
}
#endif

// torch can be told to write no CRCs: torch.utils.serialization.config.save.compute_crc32.
TEST(TorchZipTest, APatchLeavesAnAbsentCrcAbsent) {
  MemoryEnv env;
  const Bytes before = read_whole(kFixtures / "no_crc.pt");
  ASSERT_OK(env.write_file("f.pt", before));
  const Contents contents = open_path(kFixtures / "no_crc.pt").value();
  const Flip flip{contents.collection.tensor(0).name, 0, {std::byte{1}}};
  const auto patch =
      plan_torch_patch(env, "f.pt", std::array{flip}, Checksums::kConsistent);
  ASSERT_OK(patch);
  ASSERT_OK(apply_patch(env, *patch));
  EXPECT_EQ(tests::changed_bytes(before, env.read_file("f.pt").value()), 1);
  const auto verified = verify_torch(source_of(env.read_file("f.pt").value()));
  EXPECT_TRUE(verified->damage.empty());
  EXPECT_FALSE(verified->checked);
}

}  // namespace
}  // namespace holdfast::torch_zip_test
