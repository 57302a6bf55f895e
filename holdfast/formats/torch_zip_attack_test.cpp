#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "holdfast/base/testing.h"
#include "holdfast/formats/torch_zip_testing.h"

namespace holdfast::torch_zip_attack_test {
namespace {

using testing::HasSubstr;

const Path kAttacks = HOLDFAST_TORCH_ATTACKS;

std::string message_for(const std::string& name) {
  return message_of(open_path(kAttacks / "torch" / (name + ".pt")));
}

TEST(TorchZipAttackTest, WhatTheAttacksAreMadeFromIsGood) {
  EXPECT_OK(open_path(kAttacks / "torch_good.pt"));
}

TEST(TorchZipAttackTest, EveryAttackIsRefusedWithAMessageThatNamesTheFile) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kAttacks / "torch")) {
    const std::string name = entry.path().filename();
    const auto opened = open_path(entry.path());
    ASSERT_FALSE(opened.ok()) << name;
    EXPECT_THAT(opened.error().message(), HasSubstr(name));
    const bool expected = opened.error().code() == ErrorCode::kCorrupt ||
                          opened.error().code() == ErrorCode::kUnsupported;
    EXPECT_TRUE(expected) << name << ": " << opened.error().message();
    ++count;
  }
  EXPECT_EQ(count, 105);
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
      {"conjugated", "[\"w\"] is a conjugated or negated view"},
      {"directory_of_4_gib", "a directory of 4294967294 bytes"},
      {"directory_outside", "at 2147483647; expected its end at"},
      {"elements_that_share_bytes", "[\"w\"] is a view whose elements overlap in memory"},
      {"encrypted", "entry a/data/0: is encrypted"},
      {"entry_on_a_second_disk", "over several files"},
      {"expanded", "[\"w\"] is an expanded view"},
      {"extra_field_to_the_sky", "reach into the directory"},
      {"fewer_entries_than_said", "5000 entries in a directory of"},
      {"header_outside", "bytes at 2147483632, but the directory begins at"},
      {"legacy", "expected a file that torch >= 1.6 saved again"},
      {"more_entries_than_listed", "follow the last entry"},
      {"more_sizes_than_strides", "2 sizes and 1 strides"},
      {"negative_offset", "does not fit into its storage"},
      {"negative_size", "-4"},
      {"negative_stride", "has the stride -1"},
      {"nine_dimensions", "9 dimensions, limit 8"},
      {"no_pickle", "not one of torch"},
      {"no_such_storage", "storage 9, which is not in the file"},
      {"numel_negative", "impossible size"},
      {"numel_too_large", "a storage of 20 bytes, but a/data/0 has 16"},
      {"numel_too_small", "a storage of 12 bytes, but a/data/0 has 16"},
      {"offset_outside", "at element 1 does not fit into its storage of 16 bytes"},
      {"parameter_of_nothing", "is a parameter without a tensor"},
      {"pickle_billion_laughs", "grows too large"},
      {"pickle_contains_itself", "[0] contains itself"},
      {"pickle_contains_itself_through_a_tuple", "[0][0] contains itself"},
      {"pickle_deep", "nests deeper than 100"},
      {"pickle_dict_contains_itself", "[\"a\"] contains itself"},
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
      {"quantized", "[\"w\"] is made by \"torch._utils._rebuild_qtensor\""},
      {"record_of_2_gib", "2147483647 bytes at"},
      {"records_that_overlap", "reach into a/data/1"},
      {"script", "TorchScript"},
      {"size_of_the_header_differs", "8 bytes in its header; expected 16"},
      {"size_past_63_bits", "[\"w\"]"},
      {"sizes_that_differ", "15 bytes are stored as 16"},
      {"sparse", "[\"w\"] is made by \"torch._utils._rebuild_sparse_tensor\""},
      {"storage_of_no_type", "torch.MoonStorage"},
      {"stride_that_wraps", "does not fit into its storage"},
      {"subclass", "_rebuild_from_type_v2"},
      {"the_same_name_but_for_case", "entry a/DATA/0: is listed twice"},
      {"the_same_name_twice", "listed twice"},
      {"two_entries_for_one_record", "reach into"},
      {"two_paths_with_one_name",
       "[\"a\"][\"b\"] and [\"a.b\"] would both be named a.b"},
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

TEST(TorchZipAttackTest, NothingWasExecuted) {
  ASSERT_FALSE(open_path(kAttacks / "torch" / "pickle_os_system.pt").ok());
  EXPECT_FALSE(std::filesystem::exists("/tmp/holdfast-pwned"));
}

}  // namespace
}  // namespace holdfast::torch_zip_attack_test
