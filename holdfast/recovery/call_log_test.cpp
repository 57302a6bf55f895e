#include "holdfast/recovery/call_log.h"

#include <gtest/gtest.h>

#include <array>

#include "holdfast/base/testing.h"
#include "holdfast/env/env_wrapper.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/transport/local_transport.h"
#include "holdfast/transport/transport_testing.h"

namespace holdfast {
namespace {

CallKey message(int64_t update, int from, int to, int64_t number = 0) {
  return {update, "pp", "send", from, to, number};
}

CallKey collective(int64_t update, std::string group, int64_t number = 0) {
  return {update, std::move(group), "allreduce", kAllRanks, kAllRanks, number};
}

void put(CallLog& log, const CallKey& key, std::string_view bytes) {
  const ByteView part = bytes_of(bytes);
  ASSERT_OK(log.put(key, "float32", std::span(&part, 1)));
}

// A disk in memory that has files without names.
class Disk : public EnvWrapper {
 public:
  Disk() : EnvWrapper(memory) { EXPECT_OK(memory.create_folders("/spill")); }

  Result<std::unique_ptr<File>> create_unnamed(const Path& folder) override {
    auto file = HOLDFAST_TRY(memory.open(folder / "unnamed", {.mode = OpenMode::kCreate}));
    HOLDFAST_TRY(memory.remove_file(folder / "unnamed"));
    return file;
  }

  MemoryEnv memory{};
};

std::string found(const CallLog& log, const CallKey& key) {
  const Result<CallRecord> record = log.find(key);
  return record.ok() ? std::string(text_of(record->bytes))
                     : std::string(name_of(record.error().code()));
}

TEST(CallLogTest, ACallIsFoundByItsKeyAndNoOther) {
  MemoryEnv env;
  CallLog log(env);
  put(log, message(3, 0, 1), "a");
  put(log, message(3, 0, 1, 1), "b");
  put(log, collective(3, "all"), "c");
  EXPECT_EQ(found(log, message(3, 0, 1)), "a");
  EXPECT_EQ(found(log, message(3, 0, 1, 1)), "b");
  EXPECT_EQ(found(log, collective(3, "all")), "c");
  for (const CallKey& other : {message(4, 0, 1), message(3, 1, 0), message(3, 0, 1, 2),
                               collective(3, "other"), collective(3, "all", 1)}) {
    EXPECT_EQ(found(log, other), "not_found") << to_string(other);
  }
}

TEST(CallLogTest, ACallThatIsMadeAgainReplacesItsRecord) {
  MemoryEnv env;
  CallLog log(env);
  put(log, message(1, 0, 1), "first try");
  const int64_t once = log.bytes();
  put(log, message(1, 0, 1), "again, yes");
  EXPECT_EQ(found(log, message(1, 0, 1)), "again, yes");
  EXPECT_EQ(log.bytes(), once + 1);
}

TEST(CallLogTest, UpdatesAreDroppedAndStartUpStays) {
  MemoryEnv env;
  CallLog log(env);
  put(log, collective(kStartUp, "all"), "seed");
  for (int64_t update = 1; update <= 4; ++update) put(log, message(update, 0, 1), "x");
  log.drop_through(3);
  EXPECT_EQ(found(log, collective(kStartUp, "all")), "seed");
  EXPECT_EQ(found(log, message(3, 0, 1)), "not_found");
  EXPECT_EQ(found(log, message(4, 0, 1)), "x");
}

TEST(CallLogTest, RecordsAboveTheMemoryGoToAFileAndComeBack) {
  const TempFolder folder;
  CallLog log(*make_posix_env().release(), {.memory = 300, .spill = folder.path()});
  const std::string long_one(200, 'l');
  for (int64_t update = 1; update <= 9; ++update) put(log, message(update, 0, 1), long_one);
  EXPECT_LE(log.bytes_in_memory(), 300);
  EXPECT_GT(log.bytes(), 9 * 200);
  for (int64_t update = 1; update <= 9; ++update) {
    EXPECT_EQ(found(log, message(update, 0, 1)), long_one);
  }
  EXPECT_EQ(log.hole(), kStartUp);
  log.drop_through(9);
  EXPECT_EQ(log.bytes(), 0);
}

TEST(CallLogTest, WithoutRoomARecordIsNotKeptAndTheHoleIsTold) {
  MemoryEnv env;
  CallLog log(env, {.memory = 300});
  const std::string long_one(200, 'l');
  const ByteView part = bytes_of(long_one);
  put(log, message(1, 0, 1), long_one);
  EXPECT_ERROR(log.put(message(2, 0, 1), "", std::span(&part, 1)), ErrorCode::kNoSpace);
  EXPECT_EQ(log.hole(), 2);
  put(log, collective(kStartUp, "all"), long_one);  // start-up always has room
  log.drop_through(1);
  EXPECT_EQ(found(log, collective(kStartUp, "all")), long_one);
}

TEST(CallLogTest, OnAFullDiskARecordIsNotKeptAndTheHoleIsTold) {
  Disk disk;
  CallLog log(disk, {.memory = 0, .spill = "/spill"});
  const std::string long_one(200, 'l');
  const ByteView part = bytes_of(long_one);
  put(log, message(1, 0, 1), long_one);
  disk.memory.set_capacity(100);
  EXPECT_ERROR(log.put(message(2, 0, 1), "", std::span(&part, 1)), ErrorCode::kNoSpace);
  EXPECT_EQ(log.hole(), 2);
  EXPECT_EQ(found(log, message(1, 0, 1)), long_one);
  EXPECT_EQ(found(log, message(2, 0, 1)), "not_found");
  log.drop_through(2);  // the files end, so that there is room again
  disk.memory.set_capacity(1 << 20);
  put(log, message(3, 0, 1), long_one);
  EXPECT_EQ(found(log, message(3, 0, 1)), long_one);
}

TEST(CallLogTest, AnyFlippedBitAndAnyCutOfARecordIsFound) {
  MemoryEnv env;
  CallLog log(env);
  put(log, message(7, 2, 1), "the bytes of a tensor");
  const Bytes whole = *log.pack(message(7, 2, 1));
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes flipped = whole;
      flipped[at] ^= static_cast<std::byte>(1 << bit);
      CallLog other(env);
      EXPECT_ERROR(other.take(flipped), ErrorCode::kCorrupt);
    }
    CallLog other(env);
    if (at > 0) {
      EXPECT_ERROR(other.take(ByteView(whole).first(at)), ErrorCode::kCorrupt);
    }
  }
}

TEST(CallLogTest, ADoubledRecordIsOneAndADifferentOneIsRefused) {
  MemoryEnv env;
  CallLog log(env), other(env);
  put(log, message(1, 0, 1), "a");
  put(other, message(1, 0, 1), "b");
  const Bytes own = *log.pack(message(1, 0, 1));
  EXPECT_OK(log.take(own));
  EXPECT_ERROR(log.take(*other.pack(message(1, 0, 1))), ErrorCode::kConflict);
  EXPECT_EQ(found(log, message(1, 0, 1)), "a");
}

class ServedTest : public ::testing::Test {
 protected:
  // Rank 0 serves rank 1. Returns what rank 1 says of it.
  Result<void> serve(const CallLog::Wanted& sent, const CallLog::Wanted& expected) {
    Result<void> got;
    on_ranks(2, [&](int rank) {
      if (rank == 0) {
        EXPECT_OK(log_.send_to(network_.endpoint(0), 1, sent, kNoDeadline));
      } else {
        got = fresh_.receive_from(network_.endpoint(1), 0, expected, kNoDeadline);
      }
    });
    return got;
  }

  MemoryEnv env_;
  LocalNetwork network_{env_, 2};
  CallLog log_{env_}, fresh_{env_};
};

TEST_F(ServedTest, AProcessGetsWhatWasForTheRankThatItHelps) {
  put(log_, message(1, 0, 7), "for 7");
  put(log_, message(1, 0, 1), "for 1");
  const CallLog::Wanted wanted{.to = 7, .groups = {}, .after = 0, .through = 1};
  ASSERT_OK(serve(wanted, wanted));  // it is rank 1 of the network
  EXPECT_EQ(found(fresh_, message(1, 0, 7)), "for 7");
  EXPECT_ERROR(fresh_.find(message(1, 0, 1)), ErrorCode::kNotFound);
}

TEST_F(ServedTest, AReplacementGetsWhatWasForItAndNothingElse) {
  for (int64_t update = 1; update <= 5; ++update) {
    put(log_, message(update, 0, 1), "for 1");
    put(log_, message(update, 0, 2), "for 2");
    put(log_, collective(update, "pp"), "of pp");
    put(log_, collective(update, "dp"), "of dp");
  }
  const CallLog::Wanted wanted{.to = 1, .groups = {"pp"}, .after = 2, .through = 4};
  ASSERT_OK(serve(wanted, wanted));
  EXPECT_EQ(found(fresh_, message(3, 0, 1)), "for 1");
  EXPECT_EQ(found(fresh_, collective(4, "pp")), "of pp");
  for (const CallKey& other : {message(2, 0, 1), message(5, 0, 1), message(3, 0, 2),
                               collective(3, "dp")}) {
    EXPECT_EQ(found(fresh_, other), "not_found") << to_string(other);
  }
}

// A rank in the middle of a pipeline has two neighbours, each of which has kept 0.8 of its memory for it.
TEST_F(ServedTest, WhatIsReceivedFitsWhateverTheMemoryIs) {
  const std::string long_one(400, 'l');
  for (int64_t update = 1; update <= 4; ++update) put(log_, message(update, 0, 1), long_one);
  fresh_.configure({.memory = log_.bytes() / 2});
  const CallLog::Wanted wanted{.to = 1, .after = 0, .through = 4};
  ASSERT_OK(serve(wanted, wanted));
  EXPECT_EQ(fresh_.bytes(), log_.bytes());
  EXPECT_EQ(found(fresh_, message(4, 0, 1)), long_one);
  // All of the memory is left for what it keeps for others.
  EXPECT_EQ(fresh_.bytes_in_memory(), 0);
  put(fresh_, message(1, 1, 2), long_one);
  EXPECT_EQ(fresh_.hole(), kStartUp);
  fresh_.drop_through(4);
  EXPECT_EQ(fresh_.bytes(), 0);
}

TEST_F(ServedTest, WhatIsReceivedGoesToTheFolderAboveTheMemoryAndIntoMemoryIfThatIsFull) {
  const std::string long_one(400, 'l');
  for (int64_t update = 1; update <= 4; ++update) put(log_, message(update, 0, 1), long_one);
  for (const bool is_full : {false, true}) {
    Disk disk;
    if (is_full) disk.memory.set_capacity(100);
    CallLog fresh(disk, {.memory = 500, .spill = "/spill"});
    on_ranks(2, [&](int rank) {
      const CallLog::Wanted wanted{.to = 1, .after = 0, .through = 4};
      if (rank == 0) {
        EXPECT_OK(log_.send_to(network_.endpoint(0), 1, wanted, kNoDeadline));
      }
      if (rank == 1) EXPECT_OK(fresh.receive_from(network_.endpoint(1), 0, wanted, kNoDeadline));
    });
    for (int64_t update = 1; update <= 4; ++update) {
      EXPECT_EQ(found(fresh, message(update, 0, 1)), long_one) << is_full;
    }
  }
}

// SWIFT's reader takes the next record, whatever it is of.
TEST_F(ServedTest, RecordsThatComeInAnotherOrderAreFoundByTheirKeys) {
  Bytes packed;
  for (const auto& [update, number] : {std::pair<int64_t, int64_t>{2, 1}, {1, 1}, {2, 0}, {1, 0}}) {
    put(log_, message(update, 0, 1, number), fmt::format("{} {}", update, number));
    const Bytes one = *log_.pack(message(update, 0, 1, number));
    packed.insert(packed.end(), one.begin(), one.end());
  }
  ASSERT_OK(fresh_.take(packed));
  for (int64_t update = 1; update <= 2; ++update) {
    for (int64_t number = 0; number < 2; ++number) {
      EXPECT_EQ(found(fresh_, message(update, 0, 1, number)), fmt::format("{} {}", update, number));
    }
  }
}

// The last message of an update did not come into the log.
TEST_F(ServedTest, WhatIsMissingAtTheEndOfAnUpdateIsNotReplacedByTheNextOne) {
  put(log_, message(1, 0, 1, 0), "a");
  put(log_, message(2, 0, 1, 0), "b");
  put(log_, message(2, 0, 1, 1), "c");
  const CallLog::Wanted wanted{.to = 1, .after = 0, .through = 2};
  ASSERT_OK(serve(wanted, wanted));
  EXPECT_EQ(found(fresh_, message(1, 0, 1, 1)), "not_found");
  EXPECT_EQ(found(fresh_, message(2, 0, 1, 0)), "b");
}

TEST_F(ServedTest, WhatWasNotWantedIsRefused) {
  put(log_, message(9, 0, 1), "of another step");
  const Result<void> got = serve({.to = 1, .after = 0, .through = 9},
                                 {.to = 1, .after = 0, .through = 8});
  EXPECT_ERROR(got, ErrorCode::kCorrupt);
}

TEST_F(ServedTest, ARecordThatIsLongerThanAMessageComesWhole) {
  const std::string long_one(9 << 20, 'l');
  put(log_, message(1, 0, 1, 0), long_one);
  put(log_, message(1, 0, 1, 1), "a short one behind it");
  const CallLog::Wanted wanted{.to = 1, .after = 0, .through = 1};
  ASSERT_OK(serve(wanted, wanted));
  EXPECT_EQ(found(fresh_, message(1, 0, 1, 0)), long_one);
  EXPECT_EQ(found(fresh_, message(1, 0, 1, 1)), "a short one behind it");
}

TEST_F(ServedTest, LongLogsComeInSeveralMessages) {
  const std::string long_one(3 << 20, 'l');
  for (int64_t number = 0; number < 5; ++number) {
    put(log_, message(1, 0, 1, number), long_one);
  }
  const CallLog::Wanted wanted{.to = 1, .after = 0, .through = 1};
  ASSERT_OK(serve(wanted, wanted));
  EXPECT_EQ(fresh_.bytes(), log_.bytes());
}

// Three ranks in a circle: each gives its record to the next one.
class PassOnTest : public ::testing::Test {
 protected:
  static CallKey own(int64_t update, int rank) { return {update, "", "gradients", rank, rank}; }

  // Each rank passes on this many times its number.
  std::array<Result<std::string>, 3> pass(int64_t update, std::array<size_t, 3> sizes) {
    std::array<Result<std::string>, 3> said{Result<std::string>(""), Result<std::string>(""),
                                            Result<std::string>("")};
    on_ranks(3, [&](int rank) {
      const auto at = static_cast<size_t>(rank);
      const std::string bytes(sizes[at], static_cast<char>('0' + rank));
      const ByteView part = bytes_of(bytes);
      said[at] = logs_[at].pass_on(network_.endpoint(rank), (rank + 1) % 3, (rank + 2) % 3,
                                   own(update, rank), "of " + std::to_string(rank),
                                   std::span(&part, 1), kNoDeadline);
    });
    return said;
  }

  MemoryEnv env_;
  LocalNetwork network_{env_, 3};
  std::array<CallLog, 3> logs_{CallLog(env_), CallLog(env_), CallLog(env_, {.memory = 50000})};
};

TEST_F(PassOnTest, EachRankKeepsTheRecordOfAnotherOne) {
  // Far more than a queue holds, and of other lengths.
  const auto said = pass(4, {40 << 20, 100, 9 << 20});
  EXPECT_EQ(*said[0], "of 2");
  EXPECT_EQ(*said[1], "of 0");
  EXPECT_EQ(found(logs_[0], own(4, 2)), std::string(9 << 20, '2'));
  EXPECT_EQ(found(logs_[1], own(4, 0)), std::string(40 << 20, '0'));
  EXPECT_EQ(found(logs_[1], own(4, 1)), "not_found") << "a rank does not keep its own record";
}

TEST_F(PassOnTest, AnUpdateThatIsMadeAgainReplacesItsRecord) {
  static_cast<void>(pass(4, {7, 7, 7}));
  static_cast<void>(pass(4, {5, 5, 5}));
  EXPECT_EQ(found(logs_[1], own(4, 0)), "00000");
}

TEST_F(PassOnTest, WithoutRoomTheHoleIsTold) {
  const auto said = pass(6, {1, 100000, 1});
  EXPECT_ERROR(said[2], ErrorCode::kNoSpace);
  EXPECT_EQ(logs_[2].hole(), 6);
  EXPECT_OK(said[0]);
}

TEST_F(PassOnTest, TheRecordOfAnotherUpdateIsRefused) {
  std::array<Result<std::string>, 2> said{Result<std::string>(""), Result<std::string>("")};
  on_ranks(2, [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    said[at] = logs_[at].pass_on(network_.endpoint(rank), 1 - rank, 1 - rank,
                                 own(4 + rank, rank), "", {}, kNoDeadline);
  });
  EXPECT_ERROR(said[0], ErrorCode::kCorrupt);
  EXPECT_ERROR(said[1], ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace holdfast
