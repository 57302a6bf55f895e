#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <map>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/archive/zip_reader.h"
#include "holdfast/archive/zip_writer.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

std::shared_ptr<const Source> source_of(Bytes bytes) {
  return std::make_shared<MemorySource>("t.zip", std::move(bytes));
}

Bytes archive(const std::vector<std::pair<std::string, Bytes>>& records,
              ZipWriter::Options options = {}) {
  MemorySink sink;
  ZipWriter writer(sink, options);
  for (const auto& [name, bytes] : records) {
    HOLDFAST_CHECK(writer.add(name, bytes).ok(), "{}", name);
  }
  HOLDFAST_CHECK(writer.finish().ok(), "finish");
  return std::move(sink).take_bytes();
}

// Tests all combinations of small and large fields, by different limits for zip64.
RC_GTEST_PROP(ZipTest, WhatIsWrittenIsReadForEveryLimitOfZip64,
              (std::vector<std::vector<uint8_t>> contents, uint16_t limit)) {
  std::vector<std::pair<std::string, Bytes>> records;
  for (const auto& one : contents) {
    records.emplace_back("r/" + std::to_string(records.size()),
                         copy_of(std::as_bytes(std::span(one))));
  }
  const auto opened = ZipArchive::open(source_of(archive(records, {limit})));
  RC_ASSERT(opened.ok());
  RC_ASSERT(opened->entries().size() == records.size());
  for (const auto& [name, bytes] : records) {
    const ZipEntry* entry = opened->find(name);
    RC_ASSERT(entry != nullptr);
    RC_ASSERT(entry->offset % 64 == 0);
    RC_ASSERT(opened->read(*entry, 1 << 20).value() == bytes);
    RC_ASSERT(opened->verify(*entry).ok());
  }
}

TEST(ZipTest, EveryFlippedBitIsRefusedOrChangesNothing) {
  const std::vector<std::pair<std::string, Bytes>> records{
      {"r/a", copy_of(bytes_of("some bytes"))}, {"r/b", copy_of(bytes_of("others"))}};
  for (const int64_t limit : {0xffffffffLL, 1LL}) {
    const Bytes good = archive(records, {limit});
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      Bytes bad = good;
      bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      const auto opened = ZipArchive::open(source_of(std::move(bad)));
      if (!opened.ok()) continue;
      for (const ZipEntry& entry : opened->entries()) {
        const auto read = opened->read(entry, 100);
        // Flipping one bit cannot make this CRC 0.
        if (!read.ok()) continue;
        ASSERT_TRUE(*read == records[0].second || *read == records[1].second) << bit;
      }
    }
  }
}

TEST(ZipTest, AMissingRecordIsNotFoundAndALongOneNotRead) {
  const auto opened =
      ZipArchive::open(source_of(archive({{"r/a", Bytes(10, std::byte{1})}})));
  ASSERT_OK(opened);
  EXPECT_EQ(opened->find("r/b"), nullptr);
  EXPECT_ERROR(opened->read(*opened->find("r/a"), 9), ErrorCode::kCorrupt);
}

TEST(ZipTest, NamesMustFit) {
  MemorySink sink;
  ZipWriter writer(sink);
  EXPECT_ERROR(writer.begin("", 0), ErrorCode::kInvalid);
  EXPECT_ERROR(writer.begin(std::string(65536, 'x'), 0), ErrorCode::kInvalid);
}

TEST(ZipTest, MoreThan65535EntriesNeedTheZip64Record) {
  std::vector<std::pair<std::string, Bytes>> records(70000);
  for (size_t i = 0; i < records.size(); ++i) records[i].first = std::to_string(i);
  const auto opened = ZipArchive::open(source_of(archive(records)));
  ASSERT_OK(opened);
  EXPECT_EQ(opened->entries().size(), records.size());
}

// Stores only pages with bytes that are not zero, so that it can hold archives of any
// size.
class SparseFile : public Sink, public Source {
 public:
  Result<void> append(ByteView bytes) override {
    while (!bytes.empty()) {
      const int64_t page = size_ / kPage;
      const auto at = static_cast<size_t>(size_ % kPage);
      const size_t count = std::min(bytes.size(), static_cast<size_t>(kPage) - at);
      const ByteView part = bytes.first(count);
      if (std::memcmp(part.data(), zeros_.data(), count) != 0) {
        Bytes& memory = pages_[page];
        memory.resize(kPage);
        std::ranges::copy(part, memory.begin() + static_cast<ptrdiff_t>(at));
      }
      size_ += static_cast<int64_t>(count);
      bytes = bytes.subspan(count);
    }
    return {};
  }
  int64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }

 protected:
  Result<void> read_inside(int64_t offset, ByteSpan into) const override {
    for (size_t done = 0; done < into.size();) {
      const int64_t here = offset + static_cast<int64_t>(done);
      const auto at = static_cast<size_t>(here % kPage);
      const size_t count =
          std::min(into.size() - done, static_cast<size_t>(kPage) - at);
      const auto page = pages_.find(here / kPage);
      if (page == pages_.end()) {
        std::memset(into.data() + done, 0, count);
      } else {
        std::memcpy(into.data() + done, page->second.data() + at, count);
      }
      done += count;
    }
    return {};
  }

 private:
  static constexpr int64_t kPage = 1 << 16;
  const Bytes zeros_ = Bytes(kPage);
  std::map<int64_t, Bytes> pages_;
  int64_t size_ = 0;
  std::string name_ = "sparse.zip";
};

TEST(ZipTest, RecordsAndOffsetsBeyond4GiB) {
  const auto file = std::make_shared<SparseFile>();
  ZipWriter writer(*file);
  const Bytes zeros(size_t{1} << 26);
  const int64_t large = (int64_t{1} << 32) + (int64_t{1} << 26);
  ASSERT_OK(writer.add("r/first", bytes_of("first")));
  ASSERT_OK(writer.begin("r/large", large));
  for (int64_t done = 0; done < large; done += int64_t{1} << 26) {
    ASSERT_OK(writer.append(zeros));
  }
  ASSERT_OK(writer.end());
  ASSERT_OK(writer.add("r/behind", bytes_of("behind")));
  ASSERT_OK(writer.finish());
  const auto opened = ZipArchive::open(file);
  ASSERT_OK(opened);
  ASSERT_EQ(opened->entries().size(), 3u);
  EXPECT_EQ(opened->find("r/large")->size, large);
  const ZipEntry* behind = opened->find("r/behind");
  EXPECT_GT(behind->offset, large);
  EXPECT_EQ(text_of(opened->read(*behind, 100).value()), "behind");
}

}  // namespace
}  // namespace holdfast
