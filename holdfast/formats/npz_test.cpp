#include "holdfast/formats/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holdfast/archive/zip_writer.h"
#include "holdfast/base/json.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/formats/npy.h"
#include "holdfast/formats/patch_testing.h"

namespace holdfast::npz_test {
namespace {

using testing::HasSubstr;

const std::filesystem::path kChainer = HOLDFAST_CHAINER_FIXTURES;

std::shared_ptr<const Source> source_of(Bytes bytes) {
  return std::make_shared<MemorySource>("a.npy", std::move(bytes));
}

// A .npy file with this text as its header, and data behind it.
Bytes npy(std::string_view text, size_t data, int version = 1) {
  Bytes bytes = copy_of(bytes_of("\x93NUMPY"));
  bytes.push_back(static_cast<std::byte>(version));
  bytes.push_back(std::byte{0});
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
    bytes.push_back(static_cast<std::byte>((text.size() >> (8 * i)) & 0xff));
  }
  const ByteView more = bytes_of(text);
  bytes.insert(bytes.end(), more.begin(), more.end());
  for (size_t i = 0; i < data; ++i) bytes.push_back(static_cast<std::byte>(i));
  return bytes;
}

std::string hex_of(const Bytes& file) {
  const auto contents = open_npy(source_of(file));
  if (!contents.ok()) return message_of(contents);
  const Tensor& tensor = contents->collection.tensor(0);
  return fmt::format("{} {} {}", name_of(tensor.dtype), to_string(tensor.shape),
                     to_hex(tests::canonical_bytes(*contents, 0)));
}

TEST(NpyTest, ReadsWhatNumpyOfAnyAgeWrites) {
  EXPECT_EQ(
      hex_of(npy("{'descr': '<i2', 'fortran_order': False, 'shape': (2,), } \n", 4)),
      "I16 [2] 00010203");
  EXPECT_EQ(
      hex_of(npy("{'shape': (2L, 1L), 'descr': \"|u1\", 'fortran_order': True}", 2)),
      "U8 [2, 1] 0001");
  EXPECT_EQ(hex_of(npy("{'descr':'>f4','fortran_order':False,'shape':()}", 4, 2)),
            "F32 [] 03020100");
  EXPECT_EQ(
      hex_of(npy("{'descr': '>c8', 'fortran_order': False, 'shape': (1,), }", 8, 3)),
      "C64 [1] 0302010007060504");
  EXPECT_EQ(
      hex_of(npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", 6)),
      "U8 [2, 3] 000204010305");
  EXPECT_EQ(
      hex_of(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (0, 7), }", 0)),
      "BOOL [0, 7] ");
}

TEST(NpyTest, WhatIsNoHeaderIsRefusedByItsSentence) {
  const auto refused = [](const Bytes& file, const char* words) {
    EXPECT_THAT(hex_of(file), HasSubstr(words));
  };
  const auto text = [&](const char* header, const char* words) {
    refused(npy(header, 4), words);
  };
  const char* no_dict = "is not a dict of descr";
  text("", no_dict);
  text("{", no_dict);
  text("{}", no_dict);
  text("[]", no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (1), }", no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (1 1), }", no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", no_dict);
  text("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': [1], }", no_dict);
  text("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
       no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", no_dict);
  text("{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (1,), }", no_dict);
  text("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }", no_dict);
  text("{'descr': '<f4, 'fortran_order': False, 'shape': (1,), }", no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
       no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "expected 8");
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (), }x", no_dict);
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",
       "a.npy");
  text("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }",
       "dimensions");
  text("{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", "NumPy dtype <U4");
  text("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (1,), }", "NumPy dtype");
  text("{'descr': '|V2', 'fortran_order': False, 'shape': (2,), }", "NumPy dtype |V2");
  text("{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }", "NumPy dtype");
  text("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
       "records with fields");
  text("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "Python objects");
  refused(npy("{}", 0, 4), "version 4.0");
  refused(copy_of(bytes_of("\x93NUMPY")), "does not begin with the header");
  Bytes cut = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 4);
  cut[8] = std::byte{255};
  refused(cut, "limit");
}

TEST(NpzTest, NamesDifferByCaseAndObjectsAreRefusedByName) {
  const auto archive = [](const std::vector<std::pair<std::string, Bytes>>& records) {
    MemorySink sink;
    ZipWriter writer(sink);
    for (const auto& [name, bytes] : records) EXPECT_OK(writer.add(name, bytes));
    EXPECT_OK(writer.finish());
    return open_npz(source_of(std::move(sink).take_bytes()));
  };
  const Bytes one = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 4);
  const auto both = archive({{"W.npy", one}, {"w.npy", one}});
  ASSERT_OK(both);
  EXPECT_EQ(both->collection.tensors().size(), 2u);
  const auto objects = archive(
      {{"w.npy", one},
       {"bad.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (), }", 9)}});
  EXPECT_ERROR(objects, ErrorCode::kUnsupported);
  EXPECT_THAT(message_of(objects), HasSubstr("entry bad.npy: is an array of Python"));
  EXPECT_ERROR(archive({{"w.npy", one}, {"notes.txt", one}}), ErrorCode::kUnsupported);
}

void expect_chainer(const Contents& contents, const Json& expected) {
  size_t tensors = 0;
  for (const auto& [name, value] : expected.items()) {
    const auto found = contents.collection.find(name);
    if (value["dtype"] == "none") {
      EXPECT_FALSE(found);
      const auto* dict = contents.objects.as<Object::Dict>();
      ASSERT_TRUE(dict != nullptr);
      EXPECT_TRUE(dict->items.at(0).first == Object(name));
      continue;
    }
    ++tensors;
    ASSERT_TRUE(found) << name;
    const Tensor& tensor = contents.collection.tensor(*found);
    EXPECT_EQ(name_of(tensor.dtype), value["dtype"].get<std::string>());
    EXPECT_EQ(Json(tensor.shape.sizes()), value["shape"]);
    EXPECT_EQ(to_hex(tests::canonical_bytes(contents, *found)),
              value["hex"].get<std::string>());
  }
  EXPECT_EQ(contents.collection.tensors().size(), tensors);
}

TEST(NpzTest, FilesOfChainerAreReadAndPatched) {
  const auto disk = make_posix_env();
  const auto expected =
      parse_json(disk->read_text(kChainer / "expected.json").value(), "expected.json");
  ASSERT_OK(expected);
  int seen = 0;
  for (const auto& [file, values] : (*expected)["files"].items()) {
    if (!file.ends_with(".npz")) continue;
    ++seen;
    MemoryEnv env;
    const Bytes before = disk->read_file(kChainer / file).value();
    ASSERT_OK(env.write_file("file", before));
    EXPECT_EQ(format_of(env, "file").value()->name, "npz");
    const auto contents = open_file(env, "file");
    ASSERT_OK(contents);
    expect_chainer(*contents, values);
    std::map<std::string, Bytes> old;
    for (TensorId t = 0; t < contents->collection.tensors().size(); ++t) {
      old[contents->collection.tensor(t).name] = tests::canonical_bytes(*contents, t);
    }
    tests::Dice dice(4);
    const std::vector<Flip> flips = tests::random_flips(dice, *contents, 40);
    for (const Checksums checksums : {Checksums::kRaw, Checksums::kConsistent}) {
      const auto patch = plan_patch(env, "file", flips, checksums);
      ASSERT_OK(patch);
      ASSERT_OK(apply_patch(env, *patch));
      const auto report = format_of(env, "file").value()->verify(env, "file", {});
      ASSERT_OK(report);
      EXPECT_EQ(report->damage.empty(), checksums == Checksums::kConsistent) << file;
      if (checksums == Checksums::kConsistent) {
        const auto flipped = open_file(env, "file");
        ASSERT_OK(flipped);
        std::map<std::string, Bytes> want = old;
        tests::apply_flips(*contents, flips, want);
        for (const auto& [name, bytes] : want) {
          const TensorId t = flipped->collection.find(name).value();
          EXPECT_TRUE(tests::canonical_bytes(*flipped, t) == bytes) << name;
        }
      }
      ASSERT_OK(apply_patch(env, inverse(*patch)));
      EXPECT_TRUE(env.read_file("file").value() == before);
    }
  }
  EXPECT_EQ(seen, 4);
}

}  // namespace
}  // namespace holdfast::npz_test
