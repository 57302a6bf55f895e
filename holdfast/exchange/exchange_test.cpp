#include "holdfast/exchange/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <rapidcheck/gtest.h>

#include "holdfast/env/memory_env.h"
#include "holdfast/exchange/live_state_testing.h"
#include "holdfast/memory/piece_description.h"
#include "holdfast/transport/worker.h"

namespace holdfast::tests {
namespace {

using namespace std::chrono_literals;

class ExchangeTest : public ::testing::Test {
 protected:
  std::vector<Result<Exchanged>> run(LiveState& state,
                                     const ExchangeOptions& options = {}) {
    LocalNetwork network(*env_, state.ranks());
    return state.run(
        *env_, [&](int r) -> Transport& { return network.endpoint(r); }, options);
  }
  // Expects the same error on all ranks, nothing left of the new pieces and the old ones
  // as they were. Returns the message.
  std::string expect_refused(LiveState& state,
                             const std::vector<Result<Exchanged>>& outcomes,
                             ErrorCode code) {
    for (const Result<Exchanged>& outcome : outcomes) {
      EXPECT_ERROR(outcome, code);
      EXPECT_EQ(message_of(outcome), message_of(outcomes[0]));
    }
    EXPECT_TRUE(state.nothing_is_left());
    EXPECT_TRUE(state.old_is_untouched());
    return message_of(outcomes[0]);
  }

  std::unique_ptr<Env> env_ = make_posix_env();
};

// `from` ranks hold equal parts of the rows, and `to` ranks shall. Tensors of several
// windows and of a few bytes.
LiveState change_of_rows(int from, int to, int64_t rows = 300) {
  const std::vector<Tensor> tensors{
      tensor_of("a", {rows, 300}), tensor_of("b", {400, 5}),
      tensor_of("c", {rows, 100}, Dtype::kBf16), tensor_of("d", {400}, Dtype::kI64),
      tensor_of("norm", {64})};
  const auto cut = [&](int ranks) {
    RankLayout layout(tensors, ranks);
    for (TensorId t = 0; t < tensors.size(); ++t) {
      const int64_t n = tensors[t].shape[0];
      for (int r = 0; r < ranks; ++r) {
        const Box whole = Box::whole(tensors[t].shape);
        const bool replicated = tensors[t].name == "norm";
        layout.put(
            t, replicated ? whole : whole.with(0, {n * r / ranks, n * (r + 1) / ranks}),
            r);
      }
    }
    return layout.build();
  };
  return LiveState(cut(from), cut(to), Topology::uniform(1));
}

// One rank holds the state, and `to` ranks shall: receivers pass it on in a chain.
LiveState growing_replicas(int to) {
  const std::vector<Tensor> tensors{tensor_of("w", {500, 600}), tensor_of("b", {7})};
  return LiveState(replicas(tensors, 1), replicas(tensors, to), Topology::uniform(1));
}

TEST_F(ExchangeTest, EveryCarrierAndModeMovesExactlyTheBytesOfThePlan) {
  for (const auto& [from, to] : {std::pair(4, 8), std::pair(5, 3)}) {
    for (CarrierCase way : all_carriers()) {
      for (const ExchangeMode mode : {ExchangeMode::kShadow, ExchangeMode::kWindowed}) {
        SCOPED_TRACE(fmt::format("{} -> {} by {}, {}", from, to, name_of(way.carrier),
                                 name_of(mode)));
        LiveState state = change_of_rows(from, to);
        way.options.mode = mode;
        const auto outcomes = run(state, way.options);
        for (const auto& outcome : outcomes) ASSERT_OK(outcome);
        EXPECT_TRUE(state.is_right(outcomes));
        EXPECT_EQ(LiveState::received(outcomes), state.made.figures.moved);
        EXPECT_EQ(LiveState::sent(outcomes), state.made.figures.moved);
        EXPECT_EQ(state.made.figures.moved, state.made.figures.moved_bound);
        for (const auto& outcome : outcomes) {
          EXPECT_EQ(outcome->mode, mode);
          for (int c = 0; c < kCarriers; ++c) {
            if (c == static_cast<int>(way.carrier)) continue;
            EXPECT_EQ(outcome->received[static_cast<size_t>(c)], 0);
          }
        }
      }
    }
  }
}

TEST_F(ExchangeTest, ABoxThatStaysKeepsItsMemory) {
  LiveState state = change_of_rows(2, 2);
  const auto outcomes = run(state);
  for (int r = 0; r < 2; ++r) {
    const auto& outcome = outcomes[static_cast<size_t>(r)];
    ASSERT_OK(outcome);
    EXPECT_EQ(outcome->moved, 0);
    EXPECT_EQ(outcome->copied, 0);
    const LocalPieces old = state.task_of(r).old;
    EXPECT_TRUE(std::ranges::is_permutation(outcome->pieces, old));
    EXPECT_EQ(state.storages[static_cast<size_t>(r)]->released, 0);
  }
}

TEST_F(ExchangeTest, ReplicasThatGrowAreFedByThoseServedFirst) {
  for (CarrierCase way : all_carriers()) {
    for (const ExchangeMode mode : {ExchangeMode::kShadow, ExchangeMode::kWindowed}) {
      LiveState state = growing_replicas(5);
      EXPECT_GT(state.made.figures.forwarded, 0);
      way.options.mode = mode;
      const auto outcomes = run(state, way.options);
      for (const auto& outcome : outcomes) ASSERT_OK(outcome);
      EXPECT_TRUE(state.is_right(outcomes));
      // The only source sends its state about once.
      int64_t first = 0;
      for (const int64_t bytes : outcomes[0]->sent) first += bytes;
      EXPECT_LE(first, state.source.bytes() * 11 / 10);
    }
  }
}

RC_GTEST_PROP(ExchangeProperty, AnyLayoutBecomesAnyOtherOverEveryCarrier,
              (uint64_t seed)) {
  const auto env = make_posix_env();
  Dice dice(seed);
  const std::vector<CarrierCase> ways = all_carriers();
  ExchangeOptions options = ways[static_cast<size_t>(dice.below(3))].options;
  if (dice.one_in(2)) options.mode = ExchangeMode::kWindowed;
  LiveState state = random_change(seed);
  LocalNetwork network(*env, state.ranks());
  const auto outcomes = state.run(
      *env, [&](int r) -> Transport& { return network.endpoint(r); }, options);
  for (const auto& outcome : outcomes) {
    if (!outcome.ok()) RC_FAIL(message_of(outcome));
  }
  RC_ASSERT(state.is_right(outcomes));
  RC_ASSERT(LiveState::received(outcomes) == state.made.figures.moved_bound);
  RC_ASSERT(LiveState::sent(outcomes) == state.made.figures.moved_bound);
  RC_ASSERT(state.old_is_untouched());
}

TEST_F(ExchangeTest, OverTcpWithRealThreads) {
  for (CarrierCase way : all_carriers()) {
    LiveState state = change_of_rows(2, 4);
    TcpRanks tcp(*env_, state.ranks());
    const auto outcomes = state.run(
        *env_, [&](int r) -> Transport& { return tcp.at(r); }, way.options);
    for (const auto& outcome : outcomes) ASSERT_OK(outcome);
    EXPECT_TRUE(state.is_right(outcomes));
    EXPECT_EQ(LiveState::received(outcomes), state.made.figures.moved);
  }
}

// If any of five holders are lost, the others can go on exactly if every box has a
// holder left; else a box is named.
TEST_F(ExchangeTest, AnySubsetOfFiveHoldersIsLost) {
  const std::vector<Tensor> tensors{tensor_of("w", {40, 30}), tensor_of("b", {9})};
  struct Held {
    TensorId tensor;
    Box box;
    int rank;
  };
  // The upper rows are on 0 and 2, the lower ones on 1, 3 and 4; the bias is on 0 and 4.
  std::vector<Held> held;
  for (const int r : {0, 2}) held.push_back({0, Box{{0, 25}, {0, 30}}, r});
  for (const int r : {1, 3, 4}) held.push_back({0, Box{{25, 40}, {0, 30}}, r});
  for (const int r : {0, 4}) held.push_back({1, Box{{0, 9}}, r});
  int good = 0;
  for (unsigned lost = 0; lost < 32; ++lost) {
    const auto is_left = [&](int r) { return (lost >> r & 1) == 0; };
    RankLayout before(tensors, 5), after(tensors, 5);
    for (const Held& one : held) {
      if (is_left(one.rank)) before.put(one.tensor, one.box, one.rank);
    }
    int left = 0;
    for (int r = 0; r < 5; ++r) left += is_left(r) ? 1 : 0;
    if (left == 0) continue;
    // The holders that are left share the rows, and each of them has the bias.
    for (int r = 0, part = 0; r < 5; ++r) {
      if (!is_left(r)) continue;
      after.put(0, Box{{40 * part / left, 40 * (part + 1) / left}, {0, 30}}, r);
      after.put(1, Box{{0, 9}}, r);
      ++part;
    }
    const bool covered = (is_left(0) || is_left(2)) &&
                         (is_left(1) || is_left(3) || is_left(4)) &&
                         (is_left(0) || is_left(4));
    const Collection source = before.build(), target = after.build();
    const Result<Plan> planned = plan(source, target, Topology::uniform(1));
    ASSERT_EQ(planned.ok(), covered) << lost;
    if (!covered) {
      EXPECT_ERROR(planned, ErrorCode::kNotFound);
      EXPECT_NE(message_of(planned).find(": box ["), std::string::npos)
          << message_of(planned);
      continue;
    }
    ++good;
    // Lost holders are in the layouts without pieces, and have no rank.
    LiveState state(source, target, Topology::uniform(1));
    std::vector<int> holder_of;
    for (int r = 0; r < 5; ++r) {
      if (is_left(r)) holder_of.push_back(r);
    }
    LocalNetwork network(*env_, left);
    on_ranks(left, [&](int rank) {
      const int holder = holder_of[static_cast<size_t>(rank)];
      const auto h = static_cast<size_t>(holder);
      const ExchangeTask task = state.task_of(holder);
      const auto outcome =
          exchange(*env_, network.endpoint(rank), task, *state.storages[h]);
      EXPECT_OK(outcome);
      EXPECT_TRUE(outcome.ok() && state.is_right(h, *outcome));
    });
  }
  EXPECT_EQ(good, 18);
}

TEST_F(ExchangeTest, ReplicasThatDifferAreRefusedBeforeAByteMoves) {
  const std::vector<Tensor> tensors{tensor_of("w", {30, 4}), tensor_of("v", {5})};
  LiveState state(replicas(tensors, 3), replicas(tensors, 4), Topology::uniform(1));
  state.old[1][100] ^= std::byte{1};
  state.untouched = state.old;
  const std::string message = expect_refused(state, run(state), ErrorCode::kCorrupt);
  EXPECT_NE(message.find("w: rank 0 and rank 1 hold box [0:30, 0:4] with different"),
            std::string::npos)
      << message;
}

TEST_F(ExchangeTest, RanksWithOtherPlansAreRefused) {
  LiveState state = change_of_rows(2, 3), other = change_of_rows(2, 3, 301);
  LocalNetwork network(*env_, 3);
  std::vector<Result<Exchanged>> outcomes(3, Result<Exchanged>(Exchanged{}));
  on_ranks(3, [&](int r) {
    LiveState& own = r == 1 ? other : state;
    const ExchangeTask task = own.task_of(r);
    outcomes[static_cast<size_t>(r)] =
        exchange(*env_, network.endpoint(r), task, *own.storages[0]);
  });
  const std::string message = expect_refused(state, outcomes, ErrorCode::kInvalid);
  EXPECT_NE(message.find("rank 1: has other layouts"), std::string::npos) << message;
}

TEST_F(ExchangeTest, RanksThatDoNotFitTheLayoutsAreRefused) {
  {  // two ranks are one holder
    LiveState state = change_of_rows(2, 2);
    LocalNetwork network(*env_, 2);
    std::vector<Result<Exchanged>> outcomes(2, Result<Exchanged>(Exchanged{}));
    on_ranks(2, [&](int r) {
      const ExchangeTask task = state.task_of(0);
      outcomes[static_cast<size_t>(r)] = exchange(
          *env_, network.endpoint(r), task, *state.storages[static_cast<size_t>(r)]);
    });
    expect_refused(state, outcomes, ErrorCode::kInvalid);
  }
  {  // a holder has no rank
    LiveState state = change_of_rows(2, 2);
    LocalNetwork network(*env_, 1);
    const ExchangeTask task = state.task_of(0);
    EXPECT_ERROR(exchange(*env_, network.endpoint(0), task, *state.storages[0]),
                 ErrorCode::kInvalid);
  }
  {  // a rank lacks a piece that the source says it has
    LiveState state = change_of_rows(2, 3);
    LocalNetwork network(*env_, 3);
    std::vector<Result<Exchanged>> outcomes(3, Result<Exchanged>(Exchanged{}));
    on_ranks(3, [&](int r) {
      ExchangeTask task = state.task_of(r);
      if (r == 1) task.old.edit().pop_back();
      outcomes[static_cast<size_t>(r)] = exchange(
          *env_, network.endpoint(r), task, *state.storages[static_cast<size_t>(r)]);
    });
    const std::string message = expect_refused(state, outcomes, ErrorCode::kInvalid);
    EXPECT_NE(message.find("norm"), std::string::npos) << message;
  }
  {  // a file holds a box
    const std::vector<Tensor> tensors{tensor_of("w", {4})};
    LayoutBuilder files(tensors, {{.name = "a file", .kind = HolderKind::kFile}});
    files.add(0, Box{{0, 4}}, 0, 0);
    LiveState state(
        Collection::create(tensors, std::move(files).build().value()).value(),
        replicas(tensors, 1), Topology::uniform(1));
    LocalNetwork network(*env_, 1);
    ExchangeTask task = state.task_of(1);
    EXPECT_ERROR(exchange(*env_, network.endpoint(0), task, *state.storages[1]),
                 ErrorCode::kUnsupported);
  }
}

TEST_F(ExchangeTest, ARankWithoutMemoryRefusesForAll) {
  LiveState state = change_of_rows(2, 4);
  state.storages[3]->makes_left = 2;
  expect_refused(state, run(state), ErrorCode::kNoSpace);
  // In windowed mode the memory is missed later. The error says what is lost.
  LiveState late = change_of_rows(2, 4);
  late.storages[3]->makes_left = 2;
  const auto outcomes = run(late, {.mode = ExchangeMode::kWindowed});
  for (const auto& outcome : outcomes) EXPECT_ERROR(outcome, ErrorCode::kNoSpace);
  EXPECT_TRUE(late.nothing_is_left());
}

// The memory of the host is only promised when pieces are made, and a process that writes
// to promised memory that is not there is killed.
TEST_F(ExchangeTest, RanksThatTogetherNeedMoreThanTheirHostHasRefuseBeforeAByteMoves) {
  MemoryEnv env;
  ASSERT_OK(env.create_folders("/proc"));
  const auto refuses = [&](int64_t missing, ExchangeMode mode) {
    LiveState state = growing_replicas(3);  // two ranks need the whole state
    const int64_t needed = 2 * state.source.bytes() + (int64_t{64} << 20) - missing;
    EXPECT_OK(env.replace_file(
        "/proc/meminfo",
        bytes_of(fmt::format("MemAvailable: {} kB\n", needed / 1024 + (missing > 0 ? 0 : 1)))));
    LocalNetwork network(env, state.ranks());
    const auto outcomes = state.run(
        env, [&](int r) -> Transport& { return network.endpoint(r); }, {.mode = mode});
    if (outcomes[0].ok()) return !state.is_right(outcomes);
    const std::string message = expect_refused(state, outcomes, ErrorCode::kNoSpace);
    EXPECT_THAT(message, testing::HasSubstr("bytes of this host are free"));
    return true;
  };
  for (const ExchangeMode mode : {ExchangeMode::kShadow, ExchangeMode::kWindowed}) {
    EXPECT_TRUE(refuses(1 << 20, mode));
    EXPECT_TRUE(refuses(1, mode));
    EXPECT_FALSE(refuses(0, mode));
  }
}

TEST_F(ExchangeTest, AnEmptyStateAndALonelyRankAreFine) {
  LiveState nothing(replicas({}, 1), replicas({}, 3), Topology::uniform(1));
  for (const auto& outcome : run(nothing)) EXPECT_OK(outcome);
  const std::vector<Tensor> tensors{tensor_of("w", {4, 4}), tensor_of("empty", {0, 3})};
  LiveState alone(replicas(tensors, 1), replicas(tensors, 1), Topology::uniform(1));
  for (const auto& outcome : run(alone)) EXPECT_OK(outcome);
}

// From the first new piece on, the system has no room for the stack of a thread.
class NoThreadsStorage : public CountedStorage {
 public:
  Result<LocalPiece> make(const std::shared_ptr<const Tensor>& tensor,
                          const Box& box) override {
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 56);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
    return CountedStorage::make(tensor, box);
  }
};

TEST_F(ExchangeTest, ASystemThatRefusesThreadsEndsTheCallBeforeAByteMoves) {
  pthread_attr_t before;
  pthread_getattr_default_np(&before);
  LiveState state = change_of_rows(2, 3);
  state.storages[0] = std::make_unique<NoThreadsStorage>();
  const auto outcomes = run(state);
  pthread_setattr_default_np(&before);
  pthread_attr_destroy(&before);
  for (const auto& outcome : outcomes) {
    EXPECT_ERROR(outcome, ErrorCode::kUnavailable);
    EXPECT_THAT(message_of(outcome), testing::HasSubstr("refuses a thread"));
  }
  EXPECT_TRUE(state.nothing_is_left());
  EXPECT_TRUE(state.old_is_untouched());
}

TEST_F(ExchangeTest, AWorkerHasALastingNameAndAHost) {
  const Worker one = this_worker(*env_), again = this_worker(*env_);
  EXPECT_EQ(one.name, again.name);
  EXPECT_EQ(one.host, again.host);
  EXPECT_FALSE(one.name.empty());
  EXPECT_FALSE(one.host.empty());
}

TEST_F(ExchangeTest, RanksOfOneHostHaveItsNumberAndADescriptionSaysWhoseItIs) {
  const LiveHolders live = holders_of(std::vector<RankIdentity>{
      {"a/1/x", "boot 7"}, {"b/1/y", "boot 8"}, {"a/2/z", "boot 7"}, {"a/1/x", "boot 7"}});
  EXPECT_EQ(live.topology.hosts.size(), 2u);
  std::vector<std::pair<std::string, HostId>> seen;
  for (const Holder& holder : live.holders) seen.emplace_back(holder.name, holder.host);
  EXPECT_EQ(seen, (std::vector<std::pair<std::string, HostId>>{
                      {"a/1/x", 0}, {"b/1/y", 1}, {"a/2/z", 0}, {"a/1/x#2", 0}}));
  const Bytes text = introduce({"a/1/x", "boot 7"}, bytes_of("{\n}"));
  const Introduced read = parse_introduced(3, text_of(text)).value();
  EXPECT_EQ(read.who.name, "a/1/x");
  EXPECT_EQ(read.who.host, "boot 7");
  EXPECT_EQ(read.description, "{\n}");
  EXPECT_ERROR(parse_introduced(3, "a/1/x\nboot 7"), ErrorCode::kCorrupt);
  EXPECT_ERROR(parse_introduced(3, ""), ErrorCode::kCorrupt);
}

// Tensors begin at the same byte on every rank, so that the planner finds a box that
// stays in place.
TEST_F(ExchangeTest, TheAddressesOfALiveJobShowWhatStaysInPlace) {
  const Tensor w = tensor_of("w", {8, 4}), b = tensor_of("b", {5});
  PiecesOfRanks before({{.name = "x"}, {.name = "y"}}), after({{.name = "x"}});
  ASSERT_OK(before.add(0, w, Box{{0, 4}, {0, 4}}));
  ASSERT_OK(before.add(1, w, Box{{4, 8}, {0, 4}}));
  ASSERT_OK(before.add(0, b, Box{{0, 5}}));
  ASSERT_OK(after.add(0, w, Box{{0, 8}, {0, 4}}));
  ASSERT_OK(after.add(0, b, Box{{0, 5}}));
  const Collection source = before.build().value(), target = after.build().value();
  const Figures figures = plan(source, target, Topology::uniform(1)).value().figures;
  EXPECT_EQ(figures.in_place, 64 + 20);
  EXPECT_EQ(figures.copied, 0);
  EXPECT_EQ(figures.moved, 64);
}

}  // namespace
}  // namespace holdfast::tests
