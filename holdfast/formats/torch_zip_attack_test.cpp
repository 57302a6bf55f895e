#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "holdfast/base/testing.h"
#include "holdfast/formats/torch_zip_testing.h"

namespace holdfast::torch_zip_attack_test {
namespace {

using testing::HasSubstr;

const Path kAttacks = HOLDFAST_TORCH_ATTACKS;
const Path kFixtures = HOLDFAST_TORCH_FIXTURES;

std::string message_for(const std::string& name) {
  return message_of(open_path(kAttacks / "torch" / (name + ".pt")));
}

TEST(TorchZipAttackTest, WhatTheAttacksAreMadeFromIsGood) {
  EXPECT_OK(open_path(kAttacks / "torch_good.pt"));
}

// Files that are well formed but odd: what cannot be read of them is left out by name.
const std::map<std::string, std::string> kOdd{
    {"conjugated", "w: is a conjugated or negated view of F32"},
    {"elements_that_share_bytes", ""},
    {"expanded", ""},
    {"nine_dimensions", "w: has 9 dimensions, limit 8"},
    {"pickle_contains_itself", "0: contains itself"},
    {"pickle_contains_itself_through_a_tuple", "0.0: contains itself"},
    {"pickle_deep", "nests deeper than 100"},
    {"pickle_dict_contains_itself", "a: contains itself"},
    {"pickle_list_for_a_key", "the saved object: an entry has a key of another type"},
    {"quantized", "w: is made by \"torch._utils._rebuild_qtensor\""},
    {"sparse", "w: is made by \"torch._utils._rebuild_sparse_tensor\""},
    {"storage_of_no_type", "w: is in a torch.MoonStorage, which is not known"},
    {"storage_without_a_tensor", ""},
    {"stride_that_wraps", "w: is expanded to 4503599627370496 bytes"},
    {"subclass", "w: is made by \"torch._tensor._rebuild_from_type\""},
    {"two_paths_with_one_name", ""},
};

TEST(TorchZipAttackTest, WhatIsOddIsLeftOutByNameOrRead) {
  for (const auto& [name, line] : kOdd) {
    const auto opened = open_path(kAttacks / "torch" / (name + ".pt"));
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    ASSERT_EQ(opened->left_out.size(), line.empty() ? 0U : 1U) << name;
    if (!line.empty()) {
      EXPECT_THAT(opened->left_out[0], HasSubstr(line));
    }
    for (const Tensor& tensor : opened->collection.tensors()) {
      EXPECT_EQ(std::ssize(canonical(*opened, tensor.name)), tensor.bytes()) << name;
    }
  }
}

TEST(TorchZipAttackTest, ANameThatTwoTensorsWouldHaveIsThePathOfTheSecond) {
  const auto opened = open_path(kAttacks / "torch" / "two_paths_with_one_name.pt");
  ASSERT_OK(opened);
  EXPECT_TRUE(opened->collection.find("a.b"));
  EXPECT_TRUE(opened->collection.find("[\"a.b\"]"));
}

TEST(TorchZipAttackTest, EveryOtherAttackIsRefusedWithAMessageThatNamesTheFile) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kAttacks / "torch")) {
    const std::string name = entry.path().filename();
    if (kOdd.contains(entry.path().stem())) continue;
    const auto opened = open_path(entry.path());
    ASSERT_FALSE(opened.ok()) << name;
    EXPECT_THAT(opened.error().message(), HasSubstr(name));
    const bool expected = opened.error().code() == ErrorCode::kCorrupt ||
                          opened.error().code() == ErrorCode::kUnsupported;
    EXPECT_TRUE(expected) << name << ": " << opened.error().message();
    ++count;
  }
  EXPECT_EQ(count, 105 - std::ssize(kOdd));
}

// The error names the defect that the file was made for, and no other.
TEST(TorchZipAttackTest, MessagesSayWhatIsWrong) {
  const std::map<std::string, std::string> wanted{
      {"a_comment", "no end of a zip directory"},
      {"absolute_name", "entry \"/etc/pwd\": is not a safe name for a record"},
      {"another_archive_in_the_comment", "no end of a zip directory"},
      {"another_byte_order_but_for_case", "byte order is \"big\"; expected little"},
      {"another_folder_first", "lists b/data/1 first, but a has the data.pkl"},
      {"backslashes", "is not a safe name for a record"},
      {"big_endian", "byte order is \"big\"; expected little"},
      {"bytes_behind", "no end of a zip directory"},
      {"bytes_behind_the_pickle", "bytes follow its end"},
      {"bytes_in_front", "expected its end at"},
      {"compressed", "entry a/data.pkl: is compressed by method 8; expected 0"},
      {"directory_of_4_gib", "a directory of 4294967294 bytes"},
      {"directory_outside", "at 2147483647; expected its end at"},
      {"encrypted", "entry a/data/0: is encrypted"},
      {"entry_on_a_second_disk", "over several files"},
      {"extra_field_to_the_sky", "reach into the directory"},
      {"fewer_entries_than_said", "5000 entries in a directory of"},
      {"header_outside", "bytes at 2147483632, but the directory begins at"},
      {"legacy", "another version of the format before torch 1.6"},
      {"more_entries_than_listed", "follow the last entry"},
      {"more_sizes_than_strides", "2 sizes and 1 strides"},
      {"negative_offset", "does not fit into its storage"},
      {"negative_size", "-4"},
      {"negative_stride", "has the stride -1"},
      {"no_pickle", "not one of torch"},
      {"no_such_storage", "storage 9, which is not in the file"},
      {"numel_negative", "impossible size"},
      {"numel_too_large", "a storage of 20 bytes, but a/data/0 has 16"},
      {"numel_too_small", "a storage of 12 bytes, but a/data/0 has 16"},
      {"offset_outside", "at element 1 does not fit into its storage of 16 bytes"},
      {"parameter_of_nothing", "is a parameter without a tensor"},
      {"pickle_billion_laughs", "grows too large"},
      {"pickle_equal_keys", "has the key True twice"},
      {"pickle_eval_by_stack", "global \"builtins.eval\" at byte"},
      {"pickle_hidden_global", "global \"posix.system\" at byte 2 is not allowed"},
      {"pickle_huge_long", "needs 2147483647 bytes"},
      {"pickle_long_global_many_times", "a global of 50005 bytes at byte"},
      {"pickle_long_of_4_kib", "an integer of 4096 bytes, limit 1024"},
      {"pickle_long_text_many_times", "grows too large"},
      {"pickle_memo_miss", "the memo has no value with the number 7"},
      {"pickle_os_system", "global \"os.system\" at byte 2 is not allowed"},
      {"pickle_stack_underflow", "needs 2 values; the stack has 0"},
      {"pickle_surrogate", "not UTF-8"},
      {"pickle_the_same_key_twice", "has the key a twice"},
      {"pickle_unknown_opcode", "opcode 0xff at byte 2 is not allowed"},
      {"pickle_without_end", "needs 1 bytes; only 0 are left"},
      {"record_of_2_gib", "2147483647 bytes at"},
      {"records_that_overlap", "reach into a/data/1"},
      {"script", "TorchScript"},
      {"size_of_the_header_differs", "8 bytes in its header; expected 16"},
      {"size_past_63_bits", "[\"w\"]"},
      {"sizes_that_differ", "15 bytes are stored as 16"},
      {"the_same_name_but_for_case", "entry a/DATA/0: is listed twice"},
      {"the_same_name_twice", "listed twice"},
      {"two_entries_for_one_record", "reach into"},
      {"two_pickles", "both a and b have a data.pkl"},
      {"up_and_out", "is not a safe name for a record"},
      {"version_of_the_future", "version \"99\""},
      {"wrong_crc_of_the_pickle", "expected 00000001"},
      {"zip64_record_outside", "a directory of"},
      {"zip64_sizes_past_63_bits", "contradict each other"},
      {"zip64_without_its_field", "no zip64 field"},
  };
  for (const auto& [name, part] : wanted) {
    EXPECT_THAT(message_for(name), HasSubstr(part)) << name;
  }
}

TEST(TorchZipAttackTest, EveryCutOfAFileBeforeTorch16IsAnError) {
  const Bytes good = read_whole(kFixtures / "legacy.pt");
  ASSERT_OK(open_torch(source_of(good)));
  for (size_t size = 0; size < good.size(); size += 7) {
    EXPECT_FALSE(open_torch(source_of(copy_of(ByteView(good).first(size)))).ok());
  }
}

TEST(TorchZipAttackTest, NothingWasExecuted) {
  ASSERT_FALSE(open_path(kAttacks / "torch" / "pickle_os_system.pt").ok());
  EXPECT_FALSE(std::filesystem::exists("/tmp/holdfast-pwned"));
}

}  // namespace
}  // namespace holdfast::torch_zip_attack_test
