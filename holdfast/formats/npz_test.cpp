#include "holdfast/formats/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holdfast/archive/zip_writer.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/formats/npy.h"

namespace holdfast::npz_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

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

TEST(NpyTest, OneTensorIsWrittenAndSeveralAreRefused) {
  const auto written = [](std::vector<Tensor> tensors) -> Result<Bytes> {
    MemorySink sink;
    HOLDFAST_TRY(write_npy(sink, tests::random_contents(std::move(tensors))));
    return std::move(sink).take_bytes();
  };
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{0, 3}, Shape{2, 3, 4}}) {
    const Tensor tensor{.name = "tensor", .dtype = Dtype::kC64, .shape = shape};
    const auto bytes = written({tensor});
    ASSERT_OK(bytes);
    const auto again = open_npy(source_of(*bytes));
    ASSERT_OK(again);
    tests::expect_same_tensors(*again, tests::random_contents({tensor}));
  }
  EXPECT_THAT(message_of(written({})), HasSubstr("there are 0 tensors"));
  EXPECT_THAT(message_of(written({{.name = "a"}, {.name = "b"}})),
              HasSubstr("there are 2 tensors; expected one, or a .npz file"));
  EXPECT_ERROR(written({{.name = "a", .dtype = Dtype::kBf16}}),
               ErrorCode::kUnsupported);
}

TEST(NpzTest, NamesDifferByCaseAndObjectsAreLeftOutByName) {
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
  ASSERT_OK(objects);
  EXPECT_EQ(objects->collection.tensors().size(), 1u);
  ASSERT_EQ(objects->left_out.size(), 1u);
  EXPECT_THAT(objects->left_out[0], StartsWith("bad: is an array of Python objects, "));
  // Without the text that Holdfast keeps beside the arrays, they would mean something else.
  const Bytes odd = npy("{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", 16);
  EXPECT_ERROR(archive({{"w.npy", one}, {"holdfast.objects.npy", odd}}),
               ErrorCode::kUnsupported);
  EXPECT_ERROR(archive({{"w.npy", one}, {"notes.txt", one}}), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace holdfast::npz_test
