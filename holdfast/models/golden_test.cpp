// Known changes of the parallel configuration: their figures are derived in more than
// one way and compared with one table.
//
// A derivation is a way to find the figures of a change. The walk over elements is the
// reference. All other derivations are in kDerivations, and the tests run them over
// every row of both tables. A new derivation is added there.
#include <gtest/gtest.h>

#include <random>

#include "holdfast/models/elementwise_testing.h"
#include "holdfast/models/golden_table_testing.h"
#include "holdfast/models/resize.h"
#include "holdfast/models/transformers.h"
#include "holdfast/plan/assignment_testing.h"

namespace holdfast::elementwise {
namespace {

struct Derivation {
  std::string_view name;
  Figures (*derive)(const Gpt& gpt, const Transition& change);
};

Figures by_element(const Gpt& gpt, const Transition& change) {
  return figures(tally(gpt, change, Grain::kElement), change);
}

Figures by_cut_index(const Gpt& gpt, const Transition& change) {
  return figures(tally(gpt, change, Grain::kCutIndex), change);
}

// The library's own derivation, with models, build_collection(), plan() and place().
holdfast::Parallel configuration(const Parallel& p) {
  return {.tp = p.tp, .pp = p.pp, .dp = p.dp};
}

ResizeRequest request_of(const Gpt& gpt, const Transition& change, uint32_t a_host) {
  const auto devices =
      static_cast<uint32_t>(std::max(change.from.ranks(), change.to.ranks()));
  return {.model = make_gpt({.layers = gpt.layers,
                             .hidden = gpt.hidden,
                             .heads = 8,
                             .vocabulary = gpt.vocabulary,
                             .positions = gpt.positions}),
          .from = configuration(change.from),
          .to = configuration(change.to),
          .hosts = HostGrid{(devices + a_host - 1) / a_host, a_host}};
}

Figures by_planner(const Gpt& gpt, const Transition& change) {
  ResizeRequest request = request_of(gpt, change, 4);
  const Resize in_order = plan_resize(request).value();
  const Plan direct =
      plan(in_order.source, in_order.target, in_order.topology, {.forwarding = false})
          .value();
  // All devices are on one host, so that every position may take any device.
  request = request_of(gpt, change, request.hosts->hosts * 4);
  request.place = true;
  const Resize placed = plan_resize(request).value();
  return {.needed = in_order.plan.figures.needed,
          .moved = in_order.plan.figures.moved,
          .moved_best = placed.plan.figures.moved,
          .crossing = in_order.plan.figures.crossing,
          .crossing_each = direct.figures.crossing};
}

constexpr Derivation kWalk{"by element", by_element};
constexpr std::array kDerivations{
    Derivation{"by cut index", by_cut_index},
    Derivation{"by the planner", by_planner},
};

std::string name_of(const Transition& change) {
  const auto& [from, to] = change;
  return fmt::format("{},{},{} -> {},{},{}", from.tp, from.pp, from.dp, to.tp, to.pp,
                     to.dp);
}

// The figure in 1e9 bytes with as many decimals as `like` has. If `like` has none, the
// figure is in bytes, so that only an exact zero prints as zero.
std::string printed_like(std::string_view like, int64_t bytes) {
  const size_t point = like.find('.');
  if (point == std::string_view::npos) return std::to_string(bytes);
  return fmt::format("{:.{}f}", static_cast<double>(bytes) / 1e9,
                     like.size() - point - 1);
}

void expect_row(const TinyRow& row, const Figures& found) {
  EXPECT_EQ(found.needed, row.needed);
  EXPECT_EQ(found.moved, row.moved);
  EXPECT_EQ(found.moved_best, row.moved_best);
}

void expect_row(const LargeRow& row, const Figures& found) {
  const auto& [needed, moved, moved_best, crossing, crossing_each] = row.printed;
  EXPECT_EQ(printed_like(needed, found.needed), needed);
  EXPECT_EQ(printed_like(moved, found.moved), moved);
  EXPECT_EQ(printed_like(moved_best, found.moved_best), moved_best);
  EXPECT_EQ(printed_like(crossing, found.crossing), crossing);
  EXPECT_EQ(printed_like(crossing_each, found.crossing_each), crossing_each);
  EXPECT_EQ(found, row.exact);
}

template <typename Rows>
void expect_table(const Gpt& gpt, const Rows& rows, const Derivation& derivation) {
  for (const auto& row : rows) {
    SCOPED_TRACE(fmt::format("{}, {}", name_of(row.change), derivation.name));
    expect_row(row, derivation.derive(gpt, row.change));
  }
}

TEST(GoldenTest, TheWalkOverElementsGivesTheTinyTable) {
  expect_table(kTinyGpt, kTinyRows, kWalk);
}

TEST(GoldenTest, EveryDerivationGivesTheTinyTable) {
  for (const Derivation& way : kDerivations) expect_table(kTinyGpt, kTinyRows, way);
}

TEST(GoldenTest, EveryDerivationGivesTheLargeTableToTheByte) {
  for (const Derivation& way : kDerivations) expect_table(kGpt6700M, kLargeRows, way);
}

TEST(GoldenTest, EveryDerivationAgreesWithTheWalkInEveryFigure) {
  for (const TinyRow& row : kTinyRows) {
    const Figures walked = kWalk.derive(kTinyGpt, row.change);
    for (const Derivation& derivation : kDerivations) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(row.change), derivation.name));
      EXPECT_EQ(derivation.derive(kTinyGpt, row.change), walked);
    }
  }
}

// The least bytes moved if groups of `group` positions must stay on one host.
int64_t moved_grouped(const Transition& change, int group) {
  const Tally bytes = tally(kGpt6700M, change, Grain::kCutIndex);
  const Weights held = held_already(bytes, change);
  return figures(bytes, change).needed -
         GroupedAssignment(held, static_cast<size_t>(group)).total();
}

TEST(GoldenTest, KeepingTensorParallelGroupsOnHostsCostsWhatTheTableSays) {
  for (const LargeRow& row : kLargeRows) {
    SCOPED_TRACE(name_of(row.change));
    const int64_t moved = moved_grouped(row.change, row.change.to.tp);
    EXPECT_EQ(printed_like(row.moved_grouped, moved), row.moved_grouped);
  }
}

TEST(GoldenTest, PlaceKeepsTensorParallelGroupsOnHostsAsWellAsCanBe) {
  for (const LargeRow& row : kLargeRows) {
    SCOPED_TRACE(name_of(row.change));
    ResizeRequest request = request_of(kGpt6700M, row.change, 4);
    request.place = true;
    const Resize placed = plan_resize(request).value();
    EXPECT_EQ(placed.plan.figures.moved, moved_grouped(row.change, row.change.to.tp));
    EXPECT_EQ(placed.plan.figures.needed - placed.placement->kept,
              placed.plan.figures.moved);
  }
}

// A group of 8 fills two hosts. Any four of its positions may share a host; if the four
// had to be consecutive, half as many bytes again would move.
TEST(GoldenTest, TyingConsecutivePositionsOfALargeGroupToAHostCostsMore) {
  const int64_t moved = moved_grouped({{4, 2, 1}, {8, 2, 1}}, 4);
  EXPECT_EQ(printed_like("72.2", moved), "72.2");
}

TEST(GoldenTest, TheStateOfEachModelHasItsKnownSize) {
  EXPECT_EQ(state_bytes(kTinyGpt), kTinyParameters * kBytesPerParameter);
  for (const TotalRow& row : kTotalRows) {
    EXPECT_EQ(printed_like(row.total, state_bytes(row.gpt)), row.total);
  }
}

TEST(GoldenTest, EveryElementHasAsManyHoldersAsItsTensorHasCopies) {
  const Parallel parallel{.tp = 2, .pp = 2, .dp = 3};
  for (const NaiveTensor& tensor : tensors_of(kTinyGpt)) {
    const int on_stages = tensor.stage == Stage::kFirstAndLast ? 2 : 1;
    const int in_group = tensor.cut == Cut::kWhole ? parallel.tp : 1;
    for (const Holders holders : holders_of(tensor, kTinyGpt, parallel)) {
      ASSERT_EQ(std::popcount(holders), on_stages * in_group * parallel.dp)
          << tensor.name;
    }
  }
}

TEST(GoldenTest, NothingMovesWhenNothingChanges) {
  const Transition none{{2, 2, 2}, {2, 2, 2}};
  const Figures found = by_element(kTinyGpt, none);
  EXPECT_EQ(found, (Figures{.needed = found.needed}));
}

TEST(AssignmentTest, AgreesWithBruteForceOnEveryRowOfAtMostEightDevices) {
  for (const TinyRow& row : kTinyRows) {
    const auto& [from, to] = row.change;
    if (from.ranks() > 8 || to.ranks() > 8) continue;
    const Weights held =
        held_already(tally(kTinyGpt, row.change, Grain::kCutIndex), row.change);
    EXPECT_EQ(best_assignment(held), best_assignment_by_brute_force(held))
        << name_of(row.change);
  }
}

TEST(AssignmentTest, AgreesWithBruteForceOnRandomWeights) {
  std::mt19937 random(20240807);
  for (int round = 0; round < 300; ++round) {
    const size_t devices = 1 + random() % 6;
    Weights weight(1 + random() % devices, std::vector<int64_t>(devices));
    for (auto& row : weight) {
      for (int64_t& w : row) w = random() % (round % 2 == 0 ? 4 : 1'000'000);
    }
    ASSERT_EQ(best_assignment(weight), best_assignment_by_brute_force(weight))
        << "round " << round;
  }
}

TEST(AssignmentTest, GroupsOnHostsAreNeverBetterThanFreePositions) {
  // Position 0 has its bytes on host 0 and position 1 on host 1, but a group must stay
  // on one host.
  Weights weight(2, std::vector<int64_t>(8));
  weight[0][3] = 10;
  weight[1][4] = 7;
  EXPECT_EQ(best_assignment(weight), 17);
  EXPECT_EQ(GroupedAssignment(weight, 2).total(), 10);
  EXPECT_EQ(GroupedAssignment(weight, 1).total(), 17);
}

}  // namespace
}  // namespace holdfast::elementwise
