#include "holdfast/dataset/mount_tree.h"

#include <ctime>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holdfast/dataset/dataset_testing.h"

namespace holdfast::tests {
namespace {

class MountTreeTest : public CorpusTest {
 protected:
  // A file of lines "0" to "count - 1".
  void make(int count, SampleOptions options) {
    std::string text;
    for (int i = 0; i < count; ++i) text += std::to_string(i) + '\n';
    const std::string name = std::to_string(++made_) + ".jsonl";
    write(name, text);
    corpus_ = open(name).value();
    tree_ = MountTree::create(*corpus_, options, [this] { return Result<int64_t>(cursor_); })
                .value();
    options.samples = count;
    sequence_ = SampleSequence::create(options).value();
  }

  std::string bytes_at(const std::string& file) {
    const auto opened = tree_->open(file).value();
    std::string bytes(static_cast<size_t>(opened->size()), '\0');
    const auto read = opened->read(0, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(read.value(), bytes.size());
    return bytes;
  }

  // All parts of a worker's folder.
  std::string worker_bytes(const std::string& folder) {
    std::string all;
    const std::vector<MountEntry> entries = tree_->list(folder).value();
    for (const MountEntry& entry : entries) {
      if (entry.name != "list.txt") all += bytes_at(folder + "/" + entry.name);
    }
    return all;
  }

  std::string lines_of(const std::vector<int64_t>& samples) {
    std::string text;
    for (const int64_t sample : samples) text += std::to_string(sample) + '\n';
    return text;
  }

  int made_ = 0;
  int64_t cursor_ = 0;
  std::unique_ptr<Corpus> corpus_;
  std::unique_ptr<MountTree> tree_;
  std::optional<SampleSequence> sequence_;
};

TEST_F(MountTreeTest, TheSharesOfAllWorkersAreTheRestOfTheEpoch) {
  for (const EpochEnd end : {EpochEnd::kShort, EpochEnd::kDrop, EpochEnd::kJoin}) {
    make(2500, {.seed = 3, .batch = 7, .end = end});
    for (const int64_t cursor : {0, 7, 1000, 2499, 2500, 6000}) {
      for (const int64_t workers : {1, 2, 3, 7}) {
        std::vector<std::string> want(static_cast<size_t>(workers));
        const int64_t epoch = sequence_->epoch_of(sequence_->batch_at(cursor)->first);
        for (Positions batch = *sequence_->batch_at(cursor);
             sequence_->epoch_of(batch.first) == epoch;
             batch = *sequence_->batch_at(batch.last)) {
          for (int64_t worker = 0; worker < workers; ++worker) {
            want[static_cast<size_t>(worker)] +=
                lines_of(sequence_->indices(share_of(batch, worker, workers)));
          }
        }
        for (int64_t worker = 0; worker < workers; ++worker) {
          const std::string folder =
              fmt::format("/from-{}-of-{}/worker-{}", cursor, workers, worker);
          ASSERT_EQ(worker_bytes(folder), want[static_cast<size_t>(worker)]) << folder;
        }
      }
    }
  }
}

TEST_F(MountTreeTest, LinesOfAPartEndWithALineFeedWhateverTheyEndWithInTheirFile) {
  write("a.jsonl", "\xEF\xBB\xBFone\r\ntwo\r\n\r\n\nthree");
  write("b.jsonl", "four\nfive");
  const auto corpus = open("?.jsonl").value();
  tree_ = MountTree::create(*corpus, {.batch = 1, .shuffle = false}, {}).value();
  EXPECT_EQ(worker_bytes("/from-0-of-1/worker-0"), "one\ntwo\nthree\nfour\nfive\n");
}

TEST_F(MountTreeTest, TheListSaysWhereToGoOn) {
  make(2500, {.seed = 3, .batch = 2});
  EXPECT_EQ(bytes_at("/from-0-of-2/worker-1/list.txt"),
            "# part, positions from and to, samples of this worker\n"
            "part-00000.jsonl 0 2048 1024\n"
            "part-00001.jsonl 2048 2500 226\n"
            "next from-000000002500-of-2\n");
  EXPECT_EQ(worker_bytes("/from-2048-of-2/worker-1"),
            bytes_at("/from-0-of-2/worker-1/part-00001.jsonl"));
}

TEST_F(MountTreeTest, AnyRangeOfAPartCanBeRead) {
  make(300, {.seed = 1, .batch = 4});
  const std::string all = bytes_at("/from-0-of-1/worker-0/part-00000.jsonl");
  const auto file = tree_->open("/from-0-of-1/worker-0/part-00000.jsonl").value();
  for (size_t first = 0; first <= all.size(); first += 13) {
    for (const size_t count : {1, 2, 5, 64, 2000}) {
      std::string bytes(count, '?');
      const auto read = file->read(static_cast<int64_t>(first),
                                   std::as_writable_bytes(std::span(bytes)));
      ASSERT_EQ(bytes.substr(0, read.value()), all.substr(first, count)) << first;
    }
  }
  std::string none(4, '?');
  EXPECT_EQ(file->read(INT64_MAX, std::as_writable_bytes(std::span(none))).value(), 0u);
}

TEST_F(MountTreeTest, CurrentIsLookedUpEachTime) {
  make(100, {.batch = 4});
  cursor_ = 44;
  EXPECT_EQ(tree_->target_of("/current-of-3").value(), "from-000000000044-of-3");
  cursor_ = 48;
  EXPECT_EQ(tree_->target_of("/current-of-3").value(), "from-000000000048-of-3");
  EXPECT_EQ(tree_->find("/current-of-3").value(), MountEntryKind::kLink);
}

TEST_F(MountTreeTest, NoOtherPathIsThere) {
  make(100, {.batch = 4});
  for (const char* path :
       {"", "x", "/x", "/from-0", "/from--1-of-1", "/from-0-of-0", "/from-0-of-1x",
        "/from-0-of-5", "/from-0-of-2/worker-2", "/from-0-of-2/worker-", "/current-of-0",
        "/current-of-1/worker-0", "/from-0-of-1/worker-0/part-00001.jsonl",
        "/from-0-of-1/worker-0/part-0.jsonl", "/from-0-of-1/worker-0/part-00000.txt",
        "/from-9223372036854775807-of-1", "/from-9223372036854775808-of-1",
        "/from-0-of-1/worker-0/list.txt/x"}) {
    EXPECT_ERROR(tree_->find(path), ErrorCode::kNotFound);
    EXPECT_ERROR(tree_->open(path), ErrorCode::kNotFound);
    EXPECT_ERROR(tree_->list(path), ErrorCode::kNotFound);
    EXPECT_ERROR(tree_->target_of(path), ErrorCode::kNotFound);
  }
  EXPECT_OK(tree_->find("/from-007-of-02/worker-01/part-00000.jsonl"));
}

TEST_F(MountTreeTest, ManyWindowsAreFoundAtOnce) {
  const std::string file = write("t.bin", "");
  std::filesystem::resize_file(file, 100'000'000);
  corpus_ = open("t.bin", {.context = 1, .dtype = Dtype::kU8}).value();
  tree_ = MountTree::create(*corpus_, {.seed = 5, .batch = 256}, {}).value();
  const std::clock_t begin = std::clock();
  for (int64_t workers = 1; workers <= 9; ++workers) {
    const std::string folder = fmt::format("/from-12345-of-{}/worker-0", workers);
    EXPECT_EQ(tree_->list(folder).value().size(), 383u);
    EXPECT_GT(tree_->open(folder + "/part-00200.bin").value()->size(), 0);
  }
  // Processor time, which other programs do not change: some 20 ms for each number of workers.
  // To look at all positions takes more than 5 s for each.
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 20);
}

TEST_F(MountTreeTest, RefusesWhatMakesNoSense) {
  make(100, {.batch = 4});
  EXPECT_ERROR(MountTree::create(*corpus_, {.batch = 0}, {}), ErrorCode::kInvalid);
  EXPECT_ERROR(MountTree::create(*corpus_, {.batch = 1 << 21}, {}), ErrorCode::kInvalid);
  EXPECT_ERROR(MountTree::create(*corpus_, {.batch = 101, .end = EpochEnd::kDrop}, {}),
               ErrorCode::kInvalid);
  tree_ = MountTree::create(*corpus_, {.batch = 4}, {}).value();
  EXPECT_ERROR(tree_->find("/current-of-1"), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace holdfast::tests
