// Archives of NumPy that were made to break a reader: bombs, streams that are cut or
// foreign, records that contradict their directory. Each must be refused by its
// sentence. What a header may say wrongly is in npz_test.cpp, and zip archives without
// compression are in tests/attacks/torch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holdfast/archive/zip_internal.h"
#include "holdfast/base/crc32.h"
#include "holdfast/base/deflate.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/formats/npy.h"
#include "holdfast/formats/npz.h"

namespace holdfast::npz_attack_test {
namespace {

// A record as the directory and its own header describe it, true or not.
struct Record {
  std::string name = "w.npy";
  Bytes stored{};
  int64_t size = 0;  // after decoding
  Crc32 crc = 0;
  uint16_t method = zip::kDeflated;
  uint16_t flags = 0;
  // The method and the name that only the record's own header has.
  uint16_t own_method = zip::kDeflated;
  std::string own_name = name;
};

// A good record of these bytes.
Record packed(ByteView bytes) {
  return {.stored = deflate(bytes, DeflateWrapper::kNone),
          .size = std::ssize(bytes),
          .crc = crc32(bytes)};
}

// An array of F32 whose header says this shape, with this many bytes behind it.
Bytes array_of(const Shape& shape, size_t bytes) {
  Bytes array = write_npy_header(Dtype::kF32, shape);
  array.resize(array.size() + bytes, std::byte{3});
  return array;
}

Record good() { return packed(array_of({100}, 400)); }

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

Bytes archive_of(const std::vector<Record>& records) {
  Bytes all, directory;
  for (const Record& record : records) {
    const auto offset = all.size();
    append(all, zip::Header()
                    .u32(zip::kLocalMark)
                    .u16(20)
                    .u16(record.flags)
                    .u16(record.own_method)
                    .u32(0)
                    .u32(record.crc)
                    .u32(record.stored.size())
                    .u32(static_cast<uint64_t>(record.size))
                    .u16(record.own_name.size())
                    .u16(0)
                    .text(record.own_name)
                    .bytes());
    append(all, record.stored);
    append(directory, zip::Header()
                          .u32(zip::kCentralMark)
                          .u16(20)
                          .u16(20)
                          .u16(record.flags)
                          .u16(record.method)
                          .u32(0)
                          .u32(record.crc)
                          .u32(record.stored.size())
                          .u32(static_cast<uint64_t>(record.size))
                          .u16(record.name.size())
                          .u16(0)
                          .u16(0)
                          .u16(0)
                          .u16(0)
                          .u32(0)
                          .u32(offset)
                          .text(record.name)
                          .bytes());
  }
  const zip::Ends ends{.entries = std::ssize(records),
                       .offset = std::ssize(all),
                       .size = std::ssize(directory)};
  append(all, directory);
  append(all, zip::end_records(ends));
  return all;
}

// Opens an archive of these records and reads all of it.
Result<void> read_all(const std::vector<Record>& records) {
  const Contents contents = HOLDFAST_TRY(
      open_npz(std::make_shared<MemorySource>("a.npz", archive_of(records))));
  for (TensorId t = 0; t < contents.collection.tensors().size(); ++t) {
    Bytes bytes(static_cast<size_t>(contents.collection.tensor(t).bytes()));
    HOLDFAST_TRY(CanonicalStream(contents, t).read(bytes));
  }
  return {};
}

void refused(const Result<void>& seen, const char* words) {
  ASSERT_FALSE(seen.ok()) << words;
  EXPECT_TRUE(seen.error().code() == ErrorCode::kCorrupt ||
              seen.error().code() == ErrorCode::kUnsupported)
      << words;
  EXPECT_THAT(message_of(seen), testing::HasSubstr("a.npz: entry "));
  EXPECT_THAT(message_of(seen), testing::HasSubstr(words));
}

void refused(Record record, void (*change)(Record&), const char* words) {
  change(record);
  refused(read_all({record}), words);
}

TEST(NpzAttackTest, WhatTheAttacksAreMadeFromIsGood) { EXPECT_OK(read_all({good()})); }

TEST(NpzAttackTest, BombsAreRefusedBeforeTheyTakeMemory) {
  const auto says = [](int64_t size) {
    Record record = good();
    record.size = size;
    return read_all({record});
  };
  refused(says(int64_t{1} << 31), "are said to decode to 2147483648");
  refused(says(int64_t{0xfffffffe}), "are said to decode to 4294967294");
  // Few bytes of the stream make fifty million more than the directory says.
  Record bomb = packed(array_of({100}, 50'000'000));
  bomb.size = good().size;
  refused(read_all({bomb}), "does not end after 528 bytes");
  refused(
      packed(ByteView()), [](Record& record) { record.size = 70000; },
      "are said to decode to 70000");
  refused(good(), [](Record& record) { record.stored.clear(); }, "ends after");
}

TEST(NpzAttackTest, StreamsThatLieAreRefused) {
  refused(good(), [](Record& record) { record.stored.pop_back(); }, "w.npy");
  refused(good(), [](Record& record) { record.stored.resize(20); }, "ends after");
  refused(good(), [](Record& record) { record.crc ^= 1; }, "has crc");
  refused(
      good(), [](Record& record) { record.stored[0] = std::byte{7}; },
      "has an invalid block");
  // A match before the first byte of the output.
  refused(
      good(),
      [](Record& record) { record.stored = {std::byte{0x03}, std::byte{0x02}}; },
      "w.npy");
  refused(
      good(),
      [](Record& record) {
        record.stored = deflate(array_of({100}, 400), DeflateWrapper::kZlib);
      },
      "w.npy");
  refused(packed(array_of({101}, 400)), [](Record&) {}, "expected 404");
  refused(packed(array_of({99}, 400)), [](Record&) {}, "expected 396");
  refused(packed(bytes_of("\x93NUMPY")), [](Record&) {}, "does not begin with");
  refused(packed(Bytes(500)), [](Record&) {}, "does not begin with");
}

TEST(NpzAttackTest, RecordsThatContradictTheirDirectoryAreRefused) {
  refused(good(), [](Record& record) { record.method = 12; }, "by method 12");
  refused(
      good(), [](Record& record) { record.own_method = 0; }, "method 0 in its header");
  refused(good(), [](Record& record) { record.own_name = "v.npy"; }, "another name");
  refused(
      good(), [](Record& record) { record.flags = zip::kEncrypted; }, "is encrypted");
  refused(
      good(), [](Record& record) { record.name = record.own_name = "w.txt"; },
      "is no array");
  refused(read_all({good(), good()}), "is listed twice");
  for (const char* name :
       {"../w.npy", "/w.npy", "a/../../w.npy", "a\\w.npy", "a//w.npy"}) {
    Record record = good();
    record.name = record.own_name = name;
    refused(read_all({record}), "is not a safe name");
  }
}

// Holdfast keeps notes about tensors in records of their own. They are input like any
// other.
TEST(NpzAttackTest, NotesThatLieAreRefused) {
  const auto with_note = [](const char* key, std::string_view text) {
    Bytes bytes = write_npy_header(Dtype::kU8, Shape{std::ssize(text)});
    append(bytes, copy_of(bytes_of(text)));
    Record note = packed(bytes);
    note.name = note.own_name = key;
    return message_of(read_all({good(), note}));
  };
  using testing::HasSubstr;
  EXPECT_THAT(with_note("holdfast.dtypes.npy", "{"), HasSubstr("holdfast.dtypes"));
  EXPECT_THAT(with_note("holdfast.dtypes.npy", "[]"), HasSubstr("holdfast.dtypes"));
  EXPECT_THAT(with_note("holdfast.dtypes.npy", R"({"w": "BF16"})"),
              HasSubstr("holdfast.dtypes"));
  EXPECT_THAT(with_note("holdfast.dtypes.npy", R"({"x": "F32"})"),
              HasSubstr("holdfast.dtypes"));
  EXPECT_THAT(with_note("holdfast.objects.npy", "{"), HasSubstr("holdfast.objects"));
}

}  // namespace
}  // namespace holdfast::npz_attack_test
