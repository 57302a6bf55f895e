// Tests saves that overlap training: what is copied at once, what tears a save, and how
// the pieces of all ranks become one state.
#include "holdfast/memory/guard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/layout_agreement.h"
#include "holdfast/checkpoint/write_plan.h"
#include "holdfast/transport/worker.h"

namespace holdfast::tests::guard_test {
namespace {

constexpr Duration kSoon = std::chrono::seconds(10);

struct Guarded : ::testing::TestWithParam<Guard> {
  static std::vector<Tensor> tensors() {
    return {{.name = "large", .dtype = Dtype::kF32, .shape = {5000}},
            {.name = "small", .dtype = Dtype::kF32, .shape = {3}}};
  }

  std::unique_ptr<Saver> open() {
    SaverOptions options = test_options();
    options.guard = GetParam();
    options.background = true;
    options.direct = false;
    return Saver::open(env, "run", nullptr, options).value();
  }

  MemoryEnv env{1};
  Dice dice{1};
  Job job{replicated(tensors(), 1)};
};

TEST_P(Guarded, NothingIsDurableBeforeItIsSettled) {
  const auto saver = open();
  const LocalState state = job.state(0);
  const SaveHandle handle = saver->save({.step = 1, .state = &state}).value();
  ASSERT_OK(handle.captured());
  EXPECT_FALSE(handle.is_done());
  EXPECT_EQ(saver->settle().torn, std::vector<std::string>());
  EXPECT_OK(handle.durable());
  EXPECT_OK(saver->close());
}

TEST_P(Guarded, ATensorThatChangesTooEarlyIsNamedAndTheSaveIsDropped) {
  const auto saver = open();
  LocalState state = job.state(0);
  const SaveHandle torn = saver->save({.step = 1, .state = &state}).value();
  ASSERT_OK(torn.captured());
  for (LocalPiece& piece : state.pieces.edit()) {
    if (piece.tensor->name != "small") continue;
    piece.memory[static_cast<size_t>(piece.map.offset)] ^= std::byte{1};
  }
  EXPECT_EQ(saver->settle().torn, std::vector<std::string>{"small"});
  EXPECT_ERROR(torn.durable(), ErrorCode::kUnavailable);
  EXPECT_TRUE(torn.is_torn());

  const SaveHandle again = saver->save({.step = 2, .state = &state}).value();
  saver->settle();
  EXPECT_OK(again.durable());
  EXPECT_FALSE(again.is_torn());
}

TEST_P(Guarded, ATensorThatIsSaidToHaveChangedTears) {
  const auto saver = open();
  const LocalState state = job.state(0);
  const SaveHandle handle = saver->save({.step = 1, .state = &state}).value();
  EXPECT_EQ(saver->settle({"large", "elsewhere"}).torn,
            std::vector<std::string>{"large"});
  EXPECT_TRUE(handle.durable().ok() == false && handle.is_torn());
}

TEST_P(Guarded, WhatIsCopiedAtOnceMayChange) {
  const auto saver = open();
  LocalState state = job.state(0);
  for (LocalPiece& piece : state.pieces.edit()) piece.at_once = true;
  const std::vector<Memory> before = random_values(dice, tensors());
  job.set(before);
  state = job.state(0);
  for (LocalPiece& piece : state.pieces.edit()) piece.at_once = true;
  const SaveHandle handle = saver->save({.step = 1, .state = &state}).value();
  job.set(random_values(dice, tensors()));
  EXPECT_EQ(saver->settle().torn, std::vector<std::string>());
  ASSERT_OK(handle.durable());
  ASSERT_OK(saver->close());
  Job back(replicated(tensors(), 1));
  const LocalState into = back.state(0);
  ASSERT_OK(restore(env, "run", into));
  EXPECT_TRUE(back.has(before));
}

// An empty tensor has no bytes that the guard could compare, neither at the end of the
// shard nor elsewhere.
TEST_P(Guarded, AnEmptyTensorIsNotTorn) {
  const auto saver = open();
  Job with_empty(replicated({{.name = "a", .dtype = Dtype::kF32, .shape = {0, 4}},
                             {.name = "b", .dtype = Dtype::kF32, .shape = {700}},
                             {.name = "c", .dtype = Dtype::kF32, .shape = {0}}},
                            1));
  const LocalState state = with_empty.state(0);
  const SaveHandle handle = saver->save({.step = 1, .state = &state}).value();
  EXPECT_EQ(saver->settle().torn, std::vector<std::string>());
  EXPECT_OK(handle.durable());
}

// The saver keeps its plan while the state stays the same. A tensor that has moved in
// memory needs a new plan.
TEST_P(Guarded, ATensorThatHasMovedIsSavedFromWhereItIsNow) {
  const auto saver = open();
  job.set(random_values(dice, tensors()));
  const LocalState state = job.state(0);
  ASSERT_OK(saver->save({.step = 1, .state = &state}));
  saver->settle();
  Job other(replicated(tensors(), 1));
  const std::vector<Memory> moved = random_values(dice, tensors());
  other.set(moved);
  LocalState elsewhere = other.state(0);
  elsewhere.collection = state.collection;
  const SaveHandle handle = saver->save({.step = 2, .state = &elsewhere}).value();
  saver->settle();
  ASSERT_OK(handle.durable());
  ASSERT_OK(saver->close());
  Job back(replicated(tensors(), 1));
  const LocalState into = back.state(0);
  ASSERT_OK(restore(env, "run", into));
  EXPECT_TRUE(back.has(moved));
}

INSTANTIATE_TEST_SUITE_P(Depths, Guarded,
                         ::testing::Values(Guard::kSample, Guard::kFull));

// Empty pieces are not in the description of a rank, so they may come and go.
TEST(Gatherer, PiecesOfNothingDoNotShiftTheOthers) {
  MemoryEnv env{1};
  LayoutAgreement layouts(env, nullptr, kSoon);
  Bytes a(4), b(4);
  const Box one{{0, 1}}, none{{0, 0}};
  const auto held = [&](const char* name, const Box& box, ByteSpan memory) {
    return make_piece({.name = name, .dtype = Dtype::kF32, .shape = {1}}, box, memory,
                      Map::dense(box, 4));
  };
  const std::vector<LocalPiece> before{held("a", one, a), held("b", one, b)};
  ASSERT_OK(layouts.agree(LocalPieces(before), true));
  const std::vector<LocalPiece> after{held("c", none, {}), held("a", one, a),
                                      held("b", one, b)};
  const LocalState state = layouts.agree(LocalPieces(after), true).value();
  ASSERT_EQ(state.pieces.size(), 2u);
  EXPECT_EQ(state.pieces[0].tensor->name, "a");
  EXPECT_EQ(state.pieces[1].tensor->name, "b");
}

// One tensor of many blocks of 4 KiB and 100 more bytes, and the guard of a save of it.
struct Sampled : ::testing::Test {
  static constexpr int64_t kBlocks = 40;
  static constexpr int64_t kBytes = kBlocks * SampleLines::kBlock + 100;

  // Returns true if the guard sees a write of these bytes. The write comes after the
  // copy, comes before it, or is there only while the copy is made and is undone
  // afterwards.
  enum class When { kAfter, kBefore, kMeanwhile };
  bool sees(uint64_t turn, int64_t first, int64_t size, When when) {
    CaptureGuard guard(Guard::kSample, shard.shard().pieces, shard.shard().offsets,
                       turn);
    if (when != When::kAfter) write(first, size);
    const Bytes copy = copy_of(ByteView(piece().memory).first(kBytes));
    const int64_t half = kBytes / 2 + 3;
    const int64_t begin = shard.shard().offsets[0];
    guard.staged(begin, ByteView(copy).first(half));
    guard.staged(begin + half, ByteView(copy).subspan(half));
    if (when != When::kBefore)
      write(first, size);  // kMeanwhile: undoes the first write
    const bool seen = !guard.changed().value().empty();
    if (when != When::kMeanwhile) write(first, size);
    return seen;
  }
  void write(int64_t first, int64_t size) {
    for (int64_t i = first; i < first + size; ++i) {
      state.pieces[0].memory[static_cast<size_t>(i)] ^= std::byte{1};
    }
  }
  const LocalPiece& piece() { return shard.shard().pieces[0]; }

  Job job{replicated({{.name = "w", .dtype = Dtype::kU8, .shape = {kBytes}}}, 1)};
  LocalState state = job.state(0);
  WritePlan plan = WritePlan::create(state.collection, 0).value();
  ShardPlan shard = plan.shard(state);
};

TEST_F(Sampled, EveryBlockIsLookedAtWithin8Saves) {
  for (const When when : {When::kAfter, When::kBefore, When::kMeanwhile}) {
    for (uint64_t from : {0U, 13U, 800U}) {
      for (int64_t block = 0; block < kBlocks; ++block) {
        int seen = 0;
        for (uint64_t turn = from; turn < from + 8; ++turn) {
          seen += sees(turn, block * SampleLines::kBlock, SampleLines::kBlock, when);
        }
        EXPECT_GE(seen, 1) << "block " << block << " from " << from;
      }
    }
  }
}

TEST_F(Sampled, HeadAndTailAreLookedAtEachTime) {
  for (uint64_t turn = 0; turn < 100; ++turn) {
    for (const When when : {When::kAfter, When::kBefore, When::kMeanwhile}) {
      EXPECT_TRUE(sees(turn, 0, 1, when));
      EXPECT_TRUE(sees(turn, kBytes - 1, 1, when));
    }
  }
}

TEST_F(Sampled, LinesComeToLieEverywhereInTheirBlocks) {
  for (const int64_t line : {0, 1, 31, 63}) {
    int seen = 0;
    for (uint64_t turn = 0; turn < 8 * 64; ++turn) {
      seen += sees(turn, 5 * SampleLines::kBlock + 64 * line, 64, When::kMeanwhile);
    }
    EXPECT_GE(seen, 1) << line;
  }
}

// An average that was there while at least 32 KiB were copied is seen, wherever these
// bytes lie.
TEST_F(Sampled, WhatIsSwappedInForAShortWhileIsSeen) {
  for (uint64_t turn = 0; turn < 16; ++turn) {
    for (int64_t at = 0; at + (36 << 10) <= kBytes; at += 5000) {
      EXPECT_TRUE(sees(turn, at, 36 << 10, When::kMeanwhile)) << turn << " at " << at;
    }
  }
}

TEST_F(Sampled, NothingIsSeenWhereNothingHappens) {
  for (uint64_t turn = 0; turn < 20; ++turn) {
    EXPECT_FALSE(sees(turn, 0, 0, When::kAfter));
  }
}

// save() reads the sampled lines while training waits, so a large state has no more
// lines than a small one.
TEST(SampleLines, AreFewHoweverLargeTheStateIs) {
  for (const int64_t bytes : {int64_t{600} << 20, int64_t{900} << 30}) {
    // This test does not read the memory.
    const std::vector<LocalPiece> pieces{whole_piece("w", ByteSpan(), {bytes})};
    const size_t lines = SampleLines(pieces, 7).count(0);
    EXPECT_LE(lines, size_t{SampleLines::kMostLines + 3});
    EXPECT_GE(lines, size_t{SampleLines::kMostLines / 2});
  }
}

// The copy then equals the changed tensor, but neither equals what was to be saved.
TEST(Guard, AWriteBeforeTheCopyIsSeen) {
  const std::vector<Tensor> tensors{
      {.name = "w", .dtype = Dtype::kF32, .shape = {1024}}};
  Job job(replicated(tensors, 1));
  const LocalState state = job.state(0);
  const WritePlan plan = WritePlan::create(state.collection, 0).value();
  const ShardPlan shard = plan.shard(state);
  const LocalPiece& piece = shard.shard().pieces[0];
  for (const Guard depth : {Guard::kSample, Guard::kFull}) {
    CaptureGuard guard(depth, shard.shard().pieces, shard.shard().offsets, 0);
    state.pieces[0].memory[7] ^= std::byte{1};
    guard.staged(shard.shard().offsets[0], copy_of(ByteView(piece.memory).first(4096)));
    EXPECT_EQ(guard.changed().value(), std::vector<size_t>{0});
  }
}

// Several ranks, each of which holds some rows of a tensor.
struct Gather : ::testing::Test {
  using Rows = std::vector<Extent>;  // by rank

  std::vector<Result<LocalState>> agree(const Rows& rows, bool compare = true) {
    const int ranks = static_cast<int>(rows.size());
    memories.assign(rows.size(), Bytes(4 * 100));
    for (size_t r = 0; r < rows.size(); ++r) {
      for (auto i = rows[r].lo; i < rows[r].hi; ++i) {
        memories[r][static_cast<size_t>(4 * (i - rows[r].lo))] =
            static_cast<std::byte>(i);
      }
    }
    if (spoil) memories.back()[0] ^= std::byte{1};
    std::vector<Result<LocalState>> states(rows.size(), invalid("not run"));
    run_ranks(env, ranks, [&](int r, Transport& transport) {
      const auto rank = static_cast<size_t>(r);
      LayoutAgreement layouts(env, &transport, kSoon);
      const Box box{rows[rank], {0, 1}};
      const std::vector<LocalPiece> held{
          make_piece(tensor, box, memories[rank], Map::dense(box, 4))};
      states[rank] = layouts.agree(LocalPieces(held), compare);
    });
    return states;
  }

  MemoryEnv env{1};
  Tensor tensor{.name = "w", .dtype = Dtype::kF32, .shape = {7, 1}};
  std::vector<Bytes> memories;
  bool spoil = false;
};

TEST_F(Gather, BoxesOfAllRanksMakeOneCollection) {
  const auto states = agree({{0, 3}, {3, 6}, {6, 7}});
  for (const auto& state : states) {
    ASSERT_OK(state);
    EXPECT_OK(state->check());
    EXPECT_EQ(state->collection->layout().piece_count(), 3u);
  }
}

// Here all ranks are threads of one process.
TEST_F(Gather, RanksAreNamedByTheirWorkers) {
  const std::string worker = this_worker(env).name;
  const auto states = agree({{0, 4}, {4, 7}});
  for (const auto& state : states) {
    ASSERT_OK(state);
    const auto holders = state->collection->layout().holders();
    EXPECT_EQ(holders[0], (Holder{.name = worker}));
    EXPECT_EQ(holders[1], (Holder{.name = worker + "#2"}));
  }
}

TEST_F(Gather, ARankWithoutAPartHasNoPiece) {
  const auto states = agree({{0, 4}, {4, 7}, {7, 7}});
  ASSERT_OK(states[2]);
  EXPECT_TRUE(states[2]->pieces.empty());
}

TEST_F(Gather, APartThatNobodyHasIsRefusedOnAllRanks) {
  for (const auto& state : agree({{0, 3}, {4, 7}})) {
    EXPECT_ERROR(state, ErrorCode::kInvalid);
    EXPECT_NE(state.error().message().find("no rank has the box [3:4, 0:1]"),
              std::string::npos);
  }
}

TEST_F(Gather, BoxesThatOverlapAreRefused) {
  for (const auto& state : agree({{0, 4}, {3, 7}})) {
    EXPECT_ERROR(state, ErrorCode::kInvalid);
  }
}

TEST_F(Gather, ReplicasThatDifferAreRefusedOnlyIfCompared) {
  for (const auto& state : agree({{0, 7}, {0, 7}})) EXPECT_OK(state);
  spoil = true;
  for (const auto& state : agree({{0, 7}, {0, 7}})) {
    EXPECT_ERROR(state, ErrorCode::kInvalid);
  }
  for (const auto& state : agree({{0, 7}, {0, 7}}, false)) EXPECT_OK(state);
}

// All hear the error of a rank that has no pieces, whether the layout is new or known, and
// agree again after it.
TEST_F(Gather, AnErrorOfOneRankIsHeardByAll) {
  std::vector<std::vector<std::string>> said(2);
  run_ranks(env, 2, [&](int r, Transport& transport) {
    LayoutAgreement layouts(env, &transport, kSoon);
    const Box box{{4 * r, 4 * r + 4}, {0, 1}};
    Bytes memory(16);
    const LocalPieces held(std::vector<LocalPiece>{
        make_piece({.name = "w", .dtype = Dtype::kF32, .shape = {8, 1}}, box, memory,
                   Map::dense(box, 4))});
    for (const bool fails : {true, false, false, true, false}) {
      const bool own = fails && r == 1;
      const auto state =
          layouts.agree(own ? Result<LocalPieces>(no_space("full")) : held, false);
      said[static_cast<size_t>(r)].push_back(message_of(state));
    }
  });
  using Said = std::vector<std::string>;
  EXPECT_EQ(said[0], (Said{"rank 1: full", "", "", "rank 1: full", ""}));
  EXPECT_EQ(said[1], (Said{"full", "", "", "full", ""}));
}

TEST_F(Gather, AWordOfRank0GoesToAllWithIt) {
  // In round 0 the layout is new, in round 1 the second call finds it known.
  for (int round = 0; round < 2; ++round) {
    std::vector<Bytes> words(3);
    run_ranks(env, 3, [&](int r, Transport& transport) {
      LayoutAgreement layouts(env, &transport, kSoon);
      const Box box{{3 * r, 3 * r + 3}, {0, 1}};
      Bytes memory(12);
      const std::vector<LocalPiece> held{
          make_piece({.name = "w", .dtype = Dtype::kF32, .shape = {9, 1}}, box, memory,
                     Map::dense(box, 4))};
      for (int i = 0; i <= round; ++i) {
        Bytes word = copy_of(bytes_of(fmt::format("{} of rank {}", i, r)));
        EXPECT_OK(layouts.agree(LocalPieces(held), true, word, {}));
        words[static_cast<size_t>(r)] = word;
      }
    });
    for (const Bytes& word : words) {
      EXPECT_EQ(text_of(word), fmt::format("{} of rank 0", round));
    }
  }
}

TEST_F(Gather, WhatStaysAsItIsIsTheSameObject) {
  LayoutAgreement layouts(env, nullptr, kSoon);
  Bytes memory(28);
  const std::vector<LocalPiece> pieces{whole_piece(tensor, memory)};
  const auto first = layouts.agree(LocalPieces(pieces), true).value();
  EXPECT_EQ(first.collection->layout().holders()[0].name, this_worker(env).name);
  EXPECT_EQ(layouts.agree(LocalPieces(pieces), true).value().collection, first.collection);
  std::vector<LocalPiece> other = pieces;
  Tensor renamed = tensor;
  renamed.name = "v";
  other[0].tensor = std::make_shared<const Tensor>(renamed);
  EXPECT_NE(layouts.agree(LocalPieces(other), true).value().collection, first.collection);
}

}  // namespace
}  // namespace holdfast::tests::guard_test
