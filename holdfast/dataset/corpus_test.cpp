#include "holdfast/dataset/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "holdfast/dataset/dataset_testing.h"
#include "holdfast/env/file.h"

namespace holdfast::tests {
namespace {

using Lines = std::vector<std::string>;

TEST_F(CorpusTest, SamplesOfTextAreItsLinesWithoutTheirEnds) {
  EXPECT_EQ(lines("one\ntwo\n"), (Lines{"one", "two"}));
  EXPECT_EQ(lines("one\ntwo"), (Lines{"one", "two"}));
  EXPECT_EQ(lines("one\r\ntwo\r\n"), (Lines{"one", "two"}));
  EXPECT_EQ(lines("one\r\ntwo\r"), (Lines{"one", "two"}));
  EXPECT_EQ(lines("a\rb\n"), (Lines{"a\rb"}));
  EXPECT_EQ(lines("\n\n one \n\t \r\n\ntwo\n \n"), (Lines{" one ", "two"}));
  EXPECT_EQ(lines("\xEF\xBB\xBFone\n\xEF\xBB\xBFtwo\n"),
            (Lines{"one", "\xEF\xBB\xBFtwo"}));
  EXPECT_EQ(lines("\xEF\xBB\xBF\none\n"), (Lines{"one"}));
  EXPECT_EQ(lines(std::string("a\0b\n\0\n", 6)),
            (Lines{std::string("a\0b", 3), std::string("\0", 1)}));
}

TEST_F(CorpusTest, LinesAreFoundAcrossTheBlocksThatAreReadAtOnce) {
  constexpr size_t kBlock = 1 << 20;  // of ScannedFile
  for (const std::string end : {"\n", "\r\n"}) {
    for (size_t length = kBlock - 3; length < kBlock + 3; ++length) {
      const std::string first(length, 'x');
      ASSERT_EQ(lines(first + end + "two" + end), (Lines{first, "two"})) << length;
    }
  }
}

TEST_F(CorpusTest, AFileWithoutASampleIsRefused) {
  for (const std::string text : {"", "\n", " \r\n\n", "\xEF\xBB\xBF"}) {
    EXPECT_THAT(lines(text).at(0), ::testing::HasSubstr("has no sample"));
  }
}

TEST_F(CorpusTest, TooManyBlankLinesAreRefusedWithTheirPlace) {
  EXPECT_EQ(lines("one" + std::string(kMostBlank, '\n') + "two"), (Lines{"one", "two"}));
  EXPECT_THAT(lines("one\n" + std::string(kMostBlank, '\n') + "two").at(0),
              ::testing::HasSubstr("after byte 3 are 32768 bytes of blank lines"));
}

TEST_F(CorpusTest, ALineThatIsLongerThanAGigabyteIsRefusedWithItsPlace) {
  if (std::getenv("HOLDFAST_LONG") == nullptr) GTEST_SKIP() << "needs HOLDFAST_LONG=1";
  const std::string file = write("a.txt", "one\n");
  std::filesystem::resize_file(file, kMostSample + 5);  // without a byte on the disk
  const auto corpus = open("a.txt");
  EXPECT_ERROR(corpus, ErrorCode::kUnsupported);
  EXPECT_THAT(message_of(corpus),
              ::testing::HasSubstr("a.txt: the line at byte 4 is longer than 1 GiB"));
}

TEST_F(CorpusTest, FilesFollowEachOtherInTheOrderOfTheirNames) {
  write("d/b.jsonl", "3\n4\n");
  write("d/a.jsonl", "1\n2\n");
  write("e/a.jsonl", "5\n");
  write("d/empty.jsonl", "\n");
  const auto corpus = open("?/*.jsonl").value();
  EXPECT_EQ(samples_of(*corpus), (Lines{"1", "2", "3", "4", "5"}));
  EXPECT_EQ(corpus->files().size(), 4u);
  EXPECT_ERROR(corpus->read(5), ErrorCode::kInvalid);
  EXPECT_ERROR(corpus->read(-1), ErrorCode::kInvalid);
  // The indexes that lie beside the files now are not samples.
  EXPECT_EQ(open("d/*").value()->samples(), 4);
}

TEST_F(CorpusTest, WindowsOfTokensLeaveOutWhatIsTooShort) {
  write("t.bin", packed<uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  const auto corpus = open("t.bin", {.context = 3, .dtype = Dtype::kU16}).value();
  EXPECT_EQ(samples_of(*corpus),
            (Lines{packed<uint16_t>({1, 2, 3}), packed<uint16_t>({4, 5, 6})}));
  EXPECT_ERROR(open("t.bin", {.context = 8, .dtype = Dtype::kU16}), ErrorCode::kInvalid);
  EXPECT_ERROR(open("t.bin", {.dtype = Dtype::kU16}), ErrorCode::kInvalid);
  EXPECT_ERROR(open("t.bin", {.context = 3}), ErrorCode::kUnsupported);
  EXPECT_ERROR(open("t.bin", {.context = INT64_MAX, .dtype = Dtype::kU16}),
               ErrorCode::kInvalid);
}

class MegatronCorpusTest : public CorpusTest {
 protected:
  void write_pair(const MegatronTable& table, size_t tokens = 7) {
    std::vector<uint16_t> numbers(tokens);
    for (size_t i = 0; i < tokens; ++i) numbers[i] = static_cast<uint16_t>(i + 1);
    write("m.bin", packed(numbers));
    write("m.idx", table.bytes());
  }
  // Three documents: of sequences 0 and 1, of 2, and of none.
  const MegatronTable whole_{
      .tokens = {2, 1, 4}, .begins = {0, 4, 6}, .bounds = {0, 2, 3, 3}};

  void expect_corrupt(const MegatronTable& table, const std::string& part) {
    write_pair(table);
    const auto corpus = open("m");
    EXPECT_ERROR(corpus, ErrorCode::kCorrupt);
    EXPECT_THAT(message_of(corpus), ::testing::HasSubstr(part));
  }
};

TEST_F(MegatronCorpusTest, SamplesAreDocumentsOrWindows) {
  write_pair(whole_);
  const auto documents = open("m").value();
  EXPECT_EQ(samples_of(*documents),
            (Lines{packed<uint16_t>({1, 2, 3}), packed<uint16_t>({4, 5, 6, 7}), ""}));
  EXPECT_EQ(documents->dtype(), Dtype::kU16);
  for (const char* name : {"m.bin", "m.idx"}) {
    const auto windows = open(name, {.context = 2}).value();
    EXPECT_EQ(samples_of(*windows),
              (Lines{packed<uint16_t>({1, 2}), packed<uint16_t>({3, 4}),
                     packed<uint16_t>({5, 6})}));
    EXPECT_NE(windows->fingerprint(), documents->fingerprint());
  }
  EXPECT_ERROR(open("m", {.kind = CorpusKind::kMegatron, .dtype = Dtype::kI32}),
               ErrorCode::kInvalid);
}

TEST_F(MegatronCorpusTest, ATableThatDoesNotFitIsRefused) {
  MegatronTable bad = whole_;
  bad.mark[0] = 'X';
  expect_corrupt(bad, "m.idx: byte 0 does not begin");
  bad = whole_;
  bad.dtype = 9;
  expect_corrupt(bad, "byte 17 has the dtype 9");
  bad = whole_;
  bad.tokens[2] = 5;
  expect_corrupt(bad, "sequence 2 has 5 tokens; the .bin file of 14 bytes has room for 4");
  bad = whole_;
  bad.tokens[0] = -1;
  expect_corrupt(bad, "sequence 0 has -1 tokens");
  bad = whole_;
  bad.begins[1] = 6;
  expect_corrupt(bad, "sequence 1 begins at byte 6 of the .bin file; expected 4");
  bad = whole_;
  bad.bounds = {0, 3, 2, 3};
  expect_corrupt(bad, "document 2 begins with sequence 2; expected at least 3");
  bad = whole_;
  bad.bounds = {0, 2};
  expect_corrupt(bad, "document 1");
  bad = whole_;
  bad.tokens = {2, 1, 3};
  expect_corrupt(bad, "end at byte 12 of the .bin file; it has 14 bytes");
  write_pair(whole_);
  write("m.idx", whole_.bytes().substr(0, 60));
  EXPECT_ERROR(open("m"), ErrorCode::kCorrupt);
  write("m.idx", "MMIDIDX");
  EXPECT_ERROR(open("m"), ErrorCode::kCorrupt);
}

TEST_F(CorpusTest, TheFingerprintIsThatOfTheContents) {
  write("a.jsonl", "1\n2\n");
  write("b.jsonl", "1\n2\n");
  write("c.jsonl", "1\n3\n");
  const std::string first = open("a.jsonl").value()->fingerprint();
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(open("b.jsonl").value()->fingerprint(), first);
  EXPECT_NE(open("c.jsonl").value()->fingerprint(), first);
  EXPECT_NE(open("[ab].jsonl").value()->fingerprint(), first);
  EXPECT_NE(open("a.jsonl", {.kind = CorpusKind::kTokens, .context = 1, .dtype = Dtype::kU8})
                .ok(),
            true);  // its index is one of text
}

TEST_F(CorpusTest, AFileThatChangedSinceItsIndexIsRefused) {
  const std::string file = write("a.jsonl", "1\n2\n");
  ASSERT_OK(open("a.jsonl"));
  write("a.jsonl", "1\n2\n3\n");
  EXPECT_ERROR(open("a.jsonl"), ErrorCode::kConflict);
  EXPECT_THAT(message_of(open("a.jsonl")),
              ::testing::HasSubstr("a.jsonl: 6 bytes, and 4 when it was indexed"));
  write("a.jsonl", "1\n3\n");  // the same size at another time
  EXPECT_THAT(message_of(open("a.jsonl")), ::testing::HasSubstr("was changed after it"));
  ASSERT_OK(make_index(*env_, file, index_path_of(file, ""), CorpusKind::kText, {}));
  EXPECT_EQ(samples_of(*open("a.jsonl").value()), (Lines{"1", "3"}));
}

TEST_F(CorpusTest, AnIndexThatIsDamagedOrOfAnotherFileIsRefused) {
  write("a.jsonl", "1\n2\n");
  write("b.jsonl", "11\n22\n");
  ASSERT_OK(open("?.jsonl"));
  const std::string index = path("a.jsonl.holdfast-index");
  const std::string good = env_->read_text(index).value();
  for (size_t length = 0; length < good.size(); length += 7) {
    ASSERT_OK(env_->write_file(index, bytes_of(good.substr(0, length))));
    EXPECT_ERROR(open("a.jsonl"), ErrorCode::kCorrupt);
  }
  for (size_t at = 128; at < 128 + 18 * 8; ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    ASSERT_OK(env_->write_file(index, bytes_of(bad)));
    EXPECT_FALSE(open("a.jsonl").ok()) << at;
  }
  ASSERT_OK(env_->write_file(
      index, bytes_of(env_->read_text(path("b.jsonl.holdfast-index")).value())));
  EXPECT_ERROR(open("a.jsonl"), ErrorCode::kConflict);
}

TEST_F(CorpusTest, ADamagedTableIsAnErrorAndNeverAReadOutsideOfTheFile) {
  const std::string file = write("a.jsonl", "one\ntwo\nthree\n");
  ASSERT_OK(open("a.jsonl"));
  const std::string index = path("a.jsonl.holdfast-index");
  const std::string good = env_->read_text(index).value();
  for (size_t at = 128 + 18 * 8; at < good.size(); ++at) {
    for (const int bit : {0, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      ASSERT_OK(env_->write_file(index, bytes_of(bad)));
      const auto corpus = open("a.jsonl").value();
      for (int64_t i = 0; i < corpus->samples(); ++i) {
        const auto sample = corpus->read(i);
        EXPECT_TRUE(!sample.ok() || sample->size() <= 14) << at;
      }
      const auto checked = check_index(*env_, file, corpus->index_of(0), {});
      EXPECT_ERROR(checked, ErrorCode::kCorrupt);
    }
  }
}

TEST_F(CorpusTest, CheckingReadsTheFileAgain) {
  const std::string file = write("a.jsonl", "1\n2\n");
  const auto corpus = open("a.jsonl").value();
  EXPECT_OK(check_index(*env_, file, corpus->index_of(0), {}));
  const FileInfo before = env_->info(file).value();
  write("a.jsonl", "1\n3\n");
  std::filesystem::last_write_time(
      file, std::filesystem::file_time_type(std::chrono::file_clock::from_sys(before.modified)));
  ASSERT_OK(open("a.jsonl"));  // size and time are those of the index
  EXPECT_ERROR(check_index(*env_, file, corpus->index_of(0), {}), ErrorCode::kCorrupt);
}

TEST_F(CorpusTest, AFileThatIsCutWhileItIsReadIsNamed) {
  const std::string file = write("a.jsonl", "one\ntwo\n");
  const auto corpus = open("a.jsonl").value();
  ASSERT_OK(corpus->read(1));
  std::filesystem::resize_file(file, 5);
  const auto cut = corpus->read(1);
  EXPECT_ERROR(cut, ErrorCode::kCorrupt);
  EXPECT_THAT(message_of(cut), ::testing::HasSubstr("a.jsonl"));
}

TEST_F(CorpusTest, AFileThatIsChangedWhileItIsReadIsNamedInsteadOfItsNewBytes) {
  const std::string a = write("a.jsonl", "one\ntwo\n"), b = write("b.jsonl", "three\n");
  const auto corpus = open("*.jsonl").value();
  ASSERT_OK(corpus->read(1));
  ASSERT_OK(env_->open(a, {.mode = OpenMode::kUpdate}).value()->write_at(4, bytes_of("TWO")));
  set_modified(a, std::chrono::seconds(1));  // also where times are coarse
  const auto changed = corpus->read(1);
  EXPECT_ERROR(changed, ErrorCode::kCorrupt);
  EXPECT_THAT(message_of(changed), ::testing::HasSubstr("a.jsonl: was changed after"));
  EXPECT_EQ(text_of(corpus->read(2).value()), "three");
  set_modified(b, std::chrono::seconds(1));  // in one call with the other file
  EXPECT_ERROR(corpus->read(2), ErrorCode::kCorrupt);
}

TEST_F(CorpusTest, AFileThatIsReplacedWhileItIsReadKeepsItsBytes) {
  write("a.jsonl", "one\ntwo\n");
  const auto corpus = open("a.jsonl").value(), late = open("a.jsonl").value();
  ASSERT_OK(corpus->read(1));
  ASSERT_OK(env_->rename(write("new", "eno\nowt\n"), path("a.jsonl")));
  set_modified(path("a.jsonl"), std::chrono::seconds(1));
  EXPECT_EQ(text_of(corpus->read(0).value()), "one");  // of the file that it has open
  EXPECT_ERROR(late->read(0), ErrorCode::kCorrupt);
}

TEST_F(CorpusTest, AFileThatGrowsBeforeItIsReadIsNamed) {
  write("a.jsonl", "one\ntwo\n");
  const auto corpus = open("a.jsonl").value();
  write("a.jsonl", "zero\none\ntwo\n");
  const auto read = corpus->read(0);
  EXPECT_ERROR(read, ErrorCode::kCorrupt);
  EXPECT_THAT(message_of(read), ::testing::HasSubstr("13 bytes, and 8 when it was indexed"));
}

TEST_F(CorpusTest, ManyReadsAtOnceGiveWhatSingleReadsGive) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += fmt::format("{}{}\n", i, std::string(static_cast<size_t>(i % 977), 'x'));
  }
  write("a.jsonl", text);
  write("b.jsonl", text + "end\n");
  for (const char* const files : {"a.jsonl", "?.jsonl"}) {
    const auto corpus = open(files, {.threads = 3}).value();
    // 0 is one sample all the time, and the last one counts down.
    for (const int64_t stride : {int64_t{1}, int64_t{7}, int64_t{313}, int64_t{4999}, int64_t{0},
                                 corpus->samples() - 1}) {
      std::vector<int64_t> wanted;
      for (int64_t i = 0; i < 600; ++i) wanted.push_back(i * stride % corpus->samples());
      std::vector<Bytes> into;
      std::vector<SampleRead> reads;
      into.reserve(wanted.size());
      for (const int64_t sample : wanted) {
        const FileRange range = corpus->range_of(sample).value();
        into.emplace_back(static_cast<size_t>(range.size()));
        reads.push_back({range, into.back()});
      }
      ASSERT_OK(corpus->read(reads));
      for (size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_EQ(into[i], corpus->read(wanted[i]).value()) << wanted[i];
      }
    }
  }
}

TEST_F(CorpusTest, AForkedProcessReadsWithThreadsOfItsOwn) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += fmt::format("{}{}\n", i, std::string(200, 'y'));
  write("a.jsonl", text);
  const auto corpus = open("a.jsonl", {.threads = 4}).value();
  const auto sum = [&] {
    std::vector<Bytes> into;
    std::vector<SampleRead> reads;
    for (int64_t i = 0; i < 30; ++i) {
      const FileRange range = corpus->range_of(i * 100).value();
      into.emplace_back(static_cast<size_t>(range.size()));
      reads.push_back({range, into.back()});
    }
    return corpus->read(reads).ok() && into[29].size() == 204;
  };
  ASSERT_TRUE(sum());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(sum() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(sum());
}

TEST_F(CorpusTest, SeveralProcessesIndexAFileOnce) {
  std::string text;
  for (int i = 0; i < 200000; ++i) text += fmt::format("line {}\n", i);
  write("a.jsonl", text);
  std::atomic<int> indexed = 0;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&] {
        bool mine = false;
        const auto corpus =
            Corpus::open(*env_, {path("a.jsonl")}, {},
                         [&](const Path&, int64_t, int64_t) { mine = true; });
        EXPECT_EQ(corpus.value()->samples(), 200000);
        indexed += mine;
      });
    }
  }
  EXPECT_EQ(indexed, 1);
  EXPECT_FALSE(env_->info(path("a.jsonl.holdfast-index.tmp")).ok());
}

TEST_F(CorpusTest, PatternsLeaveOutIndexesAndThoseThatAreBeingMade) {
  write("a.txt", "1\n");
  for (const char* const ending : {"", ".tmp", "-0123456789abcdef.tmp", ".lock"}) {
    write(fmt::format("b.txt.holdfast-index{}", ending), "2\n");
  }
  EXPECT_EQ(samples_of(*open("*", {.kind = CorpusKind::kText}).value()), Lines{"1"});
}

TEST_F(CorpusTest, WhoInterruptsAnIndexLeavesNothing) {
  write("a.txt", "1\n");
  const auto interrupt = [](const Path&, int64_t, int64_t) { throw 1; };  // as Python does
  EXPECT_ANY_THROW(static_cast<void>(Corpus::open(*env_, {path("a.txt")}, {}, interrupt)));
  EXPECT_EQ(env_->list(path("")).value(), Lines{"a.txt"});
  EXPECT_OK(open("a.txt"));
}

TEST_F(CorpusTest, IndexesCanLieElsewhere) {
  write("d/a.jsonl", "1\n");
  write("e/a.jsonl", "2\n");
  const auto corpus = open("?/a.jsonl", {.index_folder = path("indexes")}).value();
  EXPECT_EQ(samples_of(*corpus), (Lines{"1", "2"}));
  EXPECT_EQ(env_->list(path("d")).value(), Lines{"a.jsonl"});
  EXPECT_EQ(env_->list(path("indexes")).value().size(), 2u);
}

TEST_F(CorpusTest, WhatIsNoCorpusIsRefusedInWords) {
  write("a.jsonl", "1\n");
  write("a.jsonl.gz", "1\n");
  write("a.parquet", "1\n");
  write("m.bin", "12");
  const auto message = [&](std::vector<std::string> patterns, CorpusOptions options = {}) {
    for (std::string& pattern : patterns) pattern = path(pattern);
    return message_of(Corpus::open(*env_, patterns, options));
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message({"*.txt"}), HasSubstr("no file has such a name"));
  EXPECT_THAT(message({"b.jsonl"}), HasSubstr("No such file"));
  EXPECT_THAT(message({""}), HasSubstr("is a folder"));
  EXPECT_THAT(message({"a.jsonl.gz"}), HasSubstr("is compressed"));
  EXPECT_THAT(message({"a.parquet"}), HasSubstr("the name does not tell"));
  EXPECT_THAT(message({"m.bin"}), HasSubstr("has no m.idx beside it"));
  write("m.idx", "");
  EXPECT_THAT(message({"a.jsonl", "m.bin"}), HasSubstr("expected files of one kind"));
  EXPECT_THAT(message({"a.jsonl"}, {.context = 4}), HasSubstr("only for files of tokens"));
  EXPECT_THAT(message({"a.jsonl"}, {.threads = 0}), HasSubstr("threads: 0"));
  EXPECT_THAT(message({"**/a.jsonl"}), HasSubstr("expected one * for each level"));
  EXPECT_THAT(message({"a.jsonl"}, {.index_folder = "/proc"}),
              HasSubstr("can lie elsewhere (--to, index=)"));
  EXPECT_ERROR(Corpus::open(*env_, {}, {}), ErrorCode::kInvalid);
}

}  // namespace
}  // namespace holdfast::tests
