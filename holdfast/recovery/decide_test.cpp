// Tests the decision in every state that a small job can reach.
#include "holdfast/recovery/decide.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <set>
#include <vector>

namespace holdfast {
namespace {

// How far one rank is. Buckets are reduced and written in their order.
struct Rank {
  int contributed =
      0;              // buckets that it has contributed to a reduction, in all updates
  int reduced = 0;    // buckets whose reduction is complete on this rank
  int ready = 0;      // updates
  int committed = 0;  // updates
  int written = 0;    // buckets whose tensors it has updated

  auto operator<=>(const Rank&) const = default;
};
using State = std::vector<Rank>;

struct Model {
  int ranks = 0;
  int buckets = 0;
  int updates = 1;
  bool gate =
      true;  // without it a rank writes as soon as its own reductions are complete

  // All states that are one event of one rank away.
  std::vector<State> after(const State& state) const {
    int contributed = state[0].contributed, ready = state[0].ready;
    for (const Rank& rank : state) {
      contributed = std::min(contributed, rank.contributed);
      ready = std::min(ready, rank.ready);
    }
    std::vector<State> next;
    for (size_t r = 0; r < state.size(); ++r) {
      const Rank& now = state[r];
      const auto step = [&](bool possible, int Rank::*member) {
        if (!possible) return;
        next.push_back(state);
        ++(next.back()[r].*member);
      };
      const int begun = now.written / buckets + 1;  // the update that it is in
      step(now.contributed < std::min(begun, updates) * buckets, &Rank::contributed);
      step(now.reduced < contributed, &Rank::reduced);
      step(gate && now.reduced == (now.ready + 1) * buckets, &Rank::ready);
      step(gate && now.committed < ready, &Rank::committed);
      const int may_write = gate ? now.committed : now.reduced / buckets;
      step(now.written < may_write * buckets, &Rank::written);
    }
    return next;
  }

  std::set<State> reachable() const {
    std::set<State> seen{State(static_cast<size_t>(ranks))};
    std::vector<State> todo(seen.begin(), seen.end());
    while (!todo.empty()) {
      const State state = todo.back();
      todo.pop_back();
      for (State& next : after(state)) {
        if (seen.insert(next).second) todo.push_back(std::move(next));
      }
    }
    return seen;
  }
};

struct Counts {
  int cases = 0, forward = 0, back = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};

std::vector<SurvivorStatus> statuses(const Model& model, const State& state,
                                     size_t dead) {
  std::vector<SurvivorStatus> all;
  for (size_t r = 0; r < state.size(); ++r) {
    if (r == dead) continue;
    all.push_back(
        {.rank = static_cast<int>(r),
         .committed = state[r].committed,
         .ready = state[r].ready,
         .in_update = state[r].contributed > state[r].committed * model.buckets});
  }
  return all;
}

// Checks that every survivor can do what the decision says with what it has.
void check(const Model& model, const State& state, const Decision& decision) {
  ASSERT_EQ(decision.refused, "");
  const int target = static_cast<int>(decision.target);
  for (const auto& [r, course] : decision.courses) {
    const Rank& rank = state[static_cast<size_t>(r)];
    // It has written nothing that would have to be undone, and has the gradients of all
    // that it still has to write.
    ASSERT_LE(rank.written, target * model.buckets);
    ASSERT_GE(rank.reduced, target * model.buckets);
    ASSERT_GE(rank.written, (target - 1) * model.buckets);
    const bool begun = rank.contributed > target * model.buckets;
    ASSERT_EQ(course, rank.committed < target ? Course::kForward
                      : begun                 ? Course::kBack
                                              : Course::kGoOn);
  }
}

// After a second death, whichever survivors have followed the first decision already,
// the second one is the same.
void check_second_death(const std::vector<SurvivorStatus>& survivors,
                        const Decision& first) {
  for (unsigned followed = 0; followed < 1U << survivors.size(); ++followed) {
    for (size_t dead = 0; dead < survivors.size(); ++dead) {
      std::vector<SurvivorStatus> left;
      for (size_t i = 0; i < survivors.size(); ++i) {
        if (i == dead) continue;
        left.push_back(survivors[i]);
        if ((followed >> i & 1) == 0) continue;
        const bool forward = first.courses.at(left.back().rank) == Course::kForward;
        left.back() = {.rank = left.back().rank,
                       .committed = first.target,
                       .ready = first.target,
                       .in_update = !forward && left.back().in_update};
      }
      if (left.empty()) continue;
      const Decision second = decide(left, first.target);
      ASSERT_EQ(second.refused, "");
      ASSERT_EQ(second.target, first.target);
    }
  }
}

TEST(Decide, TheModelOfReductionsIsThatOfTheTable) {
  const auto count = [](const Model& model) {
    Counts counts;
    for (const State& state : model.reachable()) {
      for (size_t dead = 0; dead < state.size(); ++dead) {
        bool complete = false;  // a survivor has all reductions, so that it may write
        for (size_t r = 0; r < state.size(); ++r) {
          complete |= r != dead && state[r].reduced == model.buckets;
        }
        ++counts.cases;
        ++(complete ? counts.forward : counts.back);
      }
    }
    fmt::print("{} ranks, {} buckets: {} cases, {} forward, {} back\n", model.ranks,
               model.buckets, counts.cases, counts.forward, counts.back);
    return counts;
  };
  EXPECT_EQ(count({.ranks = 2, .buckets = 3, .gate = false}), (Counts{206, 56, 150}));
  EXPECT_EQ(count({.ranks = 3, .buckets = 4, .gate = false}),
            (Counts{6141, 1755, 4386}));
  EXPECT_EQ(count({.ranks = 4, .buckets = 3, .gate = false}),
            (Counts{19324, 8848, 10476}));
}

class DecideInAllStates : public ::testing::TestWithParam<Model> {};

INSTANTIATE_TEST_SUITE_P(
    All, DecideInAllStates,
    ::testing::Values(Model{.ranks = 4, .buckets = 3},
                      Model{.ranks = 3, .buckets = 2, .updates = 2},
                      Model{.ranks = 2, .buckets = 3, .updates = 3}));

TEST_P(DecideInAllStates, NothingHasToBeUndoneAndUpdatesAreNeverMixed) {
  const Model& model = GetParam();
  Counts counts;
  for (const State& state : model.reachable()) {
    for (size_t dead = 0; dead < state.size(); ++dead) {
      const std::vector<SurvivorStatus> survivors = statuses(model, state, dead);
      const Decision decision = decide(survivors);
      ASSERT_NO_FATAL_FAILURE(check(model, state, decision));
      ASSERT_NO_FATAL_FAILURE(check_second_death(survivors, decision));
      const bool back = std::ranges::any_of(decision.courses, [](const auto& course) {
        return course.second == Course::kBack;
      });
      ++counts.cases;
      ++(back || decision.target == 0 ? counts.back : counts.forward);
    }
  }
  fmt::print("{} ranks, {} buckets, {} updates, gate: {} cases, {} forward, {} back\n",
             model.ranks, model.buckets, model.updates, counts.cases, counts.forward,
             counts.back);
  EXPECT_GT(counts.forward, 0);
  EXPECT_GT(counts.back, 0);
}

TEST(Decide, WhatNoRankCanBeInIsRefused) {
  const auto refused = [](std::vector<SurvivorStatus> survivors, int64_t floor = 0) {
    return decide(survivors, floor).refused;
  };
  EXPECT_EQ(refused({}), "no rank has survived");
  EXPECT_EQ(refused({{0, 5, 5, false}, {2, 4, 4, true}}),
            "rank 2 is committed to update 4 and ready for update 4; expected it to be "
            "committed to update 5 or ready for it");
  EXPECT_NE(refused({{0, 5, 5, false}, {1, 3, 4, true}}), "");
  EXPECT_NE(refused({{0, 5, 7, true}}), "");
  EXPECT_NE(refused({{0, 5, 4, true}}), "");
  EXPECT_NE(refused({{0, 5, 5, true}}, 6), "");
  EXPECT_EQ(refused({{0, 5, 6, true}}, 6), "");
  EXPECT_EQ(refused({{1, 5, 5, true}, {1, 5, 5, true}}),
            "rank 1 has sent two statuses; expected one");
}

TEST(Decide, CoursesHaveNames) {
  EXPECT_EQ(name_of(Course::kGoOn), "go on");
  EXPECT_EQ(name_of(Course::kForward), "forward");
  EXPECT_EQ(name_of(Course::kBack), "back");
}

}  // namespace
}  // namespace holdfast
