// HDF5 files that we write have what HDF5 can hold as HDF5 holds it, and the rest beside.
#include "holdfast/hdf5/hdf5_testing.h"

namespace holdfast::hdf5_test {
namespace {

Object text(const char* value) { return Object(std::string(value)); }
Object dict(std::vector<std::pair<Object, Object>> items) {
  return Object(Object::Dict{std::move(items)});
}
Object list(std::vector<Object> items) { return Object(Object::List{std::move(items)}); }

bool has_text(const Bytes& bytes, std::string_view text) {
  return text_of(bytes).find(text) != std::string_view::npos;
}

TEST(Hdf5WriteTest, WhatHdf5CannotHoldIsKeptBeside) {
  Contents contents = tests::random_contents(
      {{.name = "a/b", .dtype = Dtype::kBf16, .shape = {3}, .aliases = {"tied"}},
       {.name = "a", .dtype = Dtype::kF8E4m3fn, .shape = {4}},
       {.name = "a/b/c", .dtype = Dtype::kF8E8m0},
       {.name = "..", .shape = {2}},
       {.name = "/", .shape = {0}},
       {.name = "holdfast.tensor.1", .shape = {1}}});
  contents.metadata = {{"key", "text"}};
  // Longer than what fits into an object header.
  contents.objects = Object(std::string(100000, 'x'));
  const Contents again = contents_of(written(contents));
  tests::expect_same_tensors(again, contents);
  EXPECT_EQ(again.metadata, contents.metadata);
  EXPECT_TRUE(again.objects == contents.objects);
  EXPECT_TRUE(again.simplified.empty());
}

TEST(Hdf5WriteTest, ManyTensorsComeBack) {
  const Contents contents = many_tensors();
  tests::expect_same_tensors(contents_of(written(contents)), contents);
}

TEST(Hdf5WriteTest, FixturesThatAreWrittenAnewHaveTheSameContents) {
  for (const char* name : {"older.h5", "newer.h5", "latest.h5", "odd.h5"}) {
    const auto before = open_path(kFixtures / name);
    ASSERT_OK(before);
    const Bytes bytes = written(*before);
    const Contents after = contents_of(bytes);
    EXPECT_EQ(lines_of(after), lines_of(*before)) << name;
    tests::expect_same_tensors(after, *before);
    EXPECT_TRUE(after.objects == before->objects) << name;
    EXPECT_EQ(after.hdf5.soft_links, before->hdf5.soft_links) << name;
    EXPECT_EQ(after.hdf5.empty_groups, before->hdf5.empty_groups) << name;
    EXPECT_EQ(after.hdf5.enumerations, before->hdf5.enumerations) << name;
    EXPECT_FALSE(has_text(bytes, "holdfast.")) << name;
  }
}

// The objects that HDF5 can hold, each in the place where a file of HDF5 has it.
TEST(Hdf5WriteTest, AttributesAndTextsAreThoseOfHdf5) {
  Contents contents = tests::random_contents(
      {{.name = "g/w", .shape = {2}, .aliases = {"g/w2", "tied"}},
       {.name = "half", .dtype = Dtype::kBf16, .shape = {3}}});
  const Object odd_bytes(Bytes{std::byte{0xff}, std::byte{0xfe}});
  std::vector<Object> names;
  for (int i = 0; i < 5000; ++i) names.push_back(text("layer"));
  contents.objects =
      dict({{text("attributes"),
             dict({{text("/"), dict({{text("big"), Object(Object::BigInteger{
                                                       "18446744073709551615"})},
                                     {text("bytes"), odd_bytes},
                                     {text("layer_names"), list(names)},
                                     {text("none"), Object()}})},
                   {text("g"), dict({{text("weight_names"), list({})}})},
                   {text("g/empty"), dict({{text("flag"), Object(true)}})},
                   {text("g/w"),
                    dict({{text("a"), list({list({Object(1.5)}), list({Object(2.5)})})},
                          {text("n"), Object(int64_t{-3})}})}})},
            {text("values"), dict({{text("t"), text("a text")},
                                   {text("texts"), list({text("x"), text("")})},
                                   {text("void"), Object()}})}});
  const Bytes bytes = written(contents);
  EXPECT_FALSE(has_text(bytes, "holdfast."));
  const Contents again = contents_of(bytes);
  tests::expect_same_tensors(again, contents);
  EXPECT_TRUE(again.objects == contents.objects);
}

// An object that HDF5 has no value for is kept beside, and the others are where they
// belong, too.
TEST(Hdf5WriteTest, WhatIsNoAttributeIsKeptBeside) {
  Contents contents = tests::random_contents({{.name = "w", .shape = {2}}});
  for (const Object& odd :
       {dict({{text("a"), Object(1.0)}}), list({Object(1.0), text("x")}),
        list({list({Object(1.0)}), list({})}), Object(copy_of(bytes_of("text"))),
        list({Object(true), Object(int64_t{1})}), Object(Object::TensorName{"w"})}) {
    contents.objects = dict({{text("attributes"),
                              dict({{text("w"), dict({{text("even"), text("native")},
                                                      {text("odd"), odd}})}})}});
    const Bytes bytes = written(contents);
    EXPECT_TRUE(has_text(bytes, "holdfast.objects"));
    EXPECT_TRUE(contents_of(bytes).objects == contents.objects);
  }
}

TEST(Hdf5WriteTest, SoftLinksEmptyGroupsAndNamesOfEnumerationsAreWritten) {
  Contents contents = tests::random_contents(
      {{.name = "a link", .shape = {2}, .aliases = {"g/w", "to group/w"}},
       {.name = "colours", .dtype = Dtype::kI16, .shape = {3}}});
  contents.hdf5.soft_links = {
      {"a link", "g/w"}, {"dangling", "/nowhere/at all"}, {"to group", "/g"}};
  contents.hdf5.empty_groups = {"h/nothing", "nothing"};
  contents.hdf5.enumerations["colours"] = {{"red", -1}, {"green", 300}};
  const Bytes bytes = written(contents);
  EXPECT_FALSE(has_text(bytes, "holdfast."));
  const Contents again = contents_of(bytes);
  tests::expect_same_tensors(again, contents);
  EXPECT_EQ(again.hdf5.soft_links, contents.hdf5.soft_links);
  EXPECT_EQ(again.hdf5.empty_groups, contents.hdf5.empty_groups);
  EXPECT_EQ(again.hdf5.enumerations, contents.hdf5.enumerations);
}

// A reader calls a dataset by the first of its paths, so other names need a note.
TEST(Hdf5WriteTest, AliasesInAnyOrderComeBackInTheirOrder) {
  const Contents contents = tests::random_contents(
      {{.name = "z", .shape = {2}, .aliases = {"b/c", "a", "..", "b"}},
       {.name = "y", .shape = {1}, .aliases = {"x"}}});
  tests::expect_same_tensors(contents_of(written(contents)), contents);
}

}  // namespace
}  // namespace holdfast::hdf5_test
