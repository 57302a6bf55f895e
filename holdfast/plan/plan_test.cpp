#include "holdfast/plan/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "holdfast/plan/plan_testing.h"
#include "holdfast/state/box_index.h"
#include "holdfast/state/seal.h"

namespace holdfast::plan_test {
namespace {

using namespace tests;

struct Case {
  Dice dice;
  Topology topology;
  std::vector<Tensor> tensors;
  Collection source, target;
};

Collection random_collection(Dice& dice, const Topology& topology,
                             const std::vector<Tensor>& tensors) {
  return RandomLayout(dice, tensors, random_holders(dice, topology)).complete();
}

Case random_case(uint64_t seed) {
  Dice dice(seed);
  const Topology topology = random_topology(dice);
  const std::vector<Tensor> tensors = random_tensors(dice);
  Collection source = random_collection(dice, topology, tensors);
  Collection target = random_collection(dice, topology, tensors);
  return {dice, topology, tensors, std::move(source), std::move(target)};
}

// The names of the holders of each element, found element by element.
using Owners = std::vector<std::map<int64_t, std::set<std::string>>>;

Owners owners_of(const Collection& collection) {
  Owners owners(collection.tensors().size());
  for_each_piece(collection, [&](TensorId t, HolderId h, const Box& box,
                                 const Map& map) {
    for_each_element(collection.tensor(t), box, map, [&](int64_t canonical, int64_t) {
      owners[t][canonical].insert(collection.layout().holders()[h].name);
    });
  });
  return owners;
}

struct Bounds {
  int64_t needed = 0, moved = 0, crossing = 0;
};

Bounds brute_force(const Case& c) {
  std::map<std::string, HostId> host_of;
  for (const Collection* side : {&c.source, &c.target}) {
    for (const Holder& holder : side->layout().holders()) {
      host_of[holder.name] = holder.host;
    }
  }
  const Owners have = owners_of(c.source), want = owners_of(c.target);
  Bounds bounds;
  for (TensorId t = 0; t < c.tensors.size(); ++t) {
    const int64_t bytes = bytes_of(c.tensors[t].dtype);
    for (const auto& [element, wanting] : want[t]) {
      const std::set<std::string>& having = have[t].at(element);
      std::set<HostId> hosts_having, hosts_lacking;
      for (const std::string& name : having) hosts_having.insert(host_of[name]);
      for (const std::string& name : wanting) {
        bounds.needed += bytes;
        bounds.moved += having.contains(name) ? 0 : bytes;
        if (!hosts_having.contains(host_of[name])) hosts_lacking.insert(host_of[name]);
      }
      bounds.crossing += bytes * static_cast<int64_t>(hosts_lacking.size());
    }
  }
  return bounds;
}

RC_GTEST_PROP(PlanTest, CarriedOutOnRealBytesGivesExactlyTheTarget, (uint64_t seed)) {
  Case c = random_case(seed);
  const std::vector<Memory> values = random_values(c.dice, c.tensors);
  const Plan made = plan(c.source, c.target, c.topology).value();
  const Memories fresh = carry_out(made, c.source, c.target, fill(c.source, values));
  RC_ASSERT(holds(c.target, fresh, values));
}

// The seal of a tensor, computed from its holders' bytes: each element once, from any
// of its holders.
Seal seal_of(const Collection& collection, const Memories& memories, TensorId t) {
  const Layout& layout = collection.layout();
  const Tensor& tensor = collection.tensor(t);
  Seal seal;
  for (const Cell& cell : refine(layout.boxes(t)).value()) {
    const PieceId piece = layout.slices(t)[cell.owners.back()].last - 1;
    const Map map = layout.map(piece, bytes_of(tensor.dtype));
    seal += seal_box(tensor.shape, tensor.dtype, cell.box,
                     map.narrowed(layout.box(piece), cell.box),
                     memories[layout.holder(piece)]);
  }
  return seal;
}

RC_GTEST_PROP(PlanTest, TheSealsOfAllTensorsAreTheSameBeforeAndAfter, (uint64_t seed)) {
  Case c = random_case(seed);
  const std::vector<Memory> values = random_values(c.dice, c.tensors);
  const Plan made = plan(c.source, c.target, c.topology).value();
  const Memories old = fill(c.source, values);
  const Memories fresh = carry_out(made, c.source, c.target, old);
  for (TensorId t = 0; t < c.tensors.size(); ++t) {
    const Seal whole = seal_bytes(values[t], 0);
    RC_ASSERT(seal_of(c.source, old, t) == whole);
    RC_ASSERT(seal_of(c.target, fresh, t) == whole);
  }
}

RC_GTEST_PROP(PlanTest, WithoutForwardingItReadsOnlyTheSource, (uint64_t seed)) {
  Case c = random_case(seed);
  const std::vector<Memory> values = random_values(c.dice, c.tensors);
  const Plan made = plan(c.source, c.target, c.topology, {.forwarding = false}).value();
  for (const Move& move : made.moves) RC_ASSERT(move.after == kNoMove);
  const Memories fresh = carry_out(made, c.source, c.target, fill(c.source, values));
  RC_ASSERT(holds(c.target, fresh, values));
  RC_ASSERT(made.figures.moved == brute_force(c).moved);
}

RC_GTEST_PROP(PlanTest, MovedAndCrossingEqualTheBoundsOfBruteForce, (uint64_t seed)) {
  const Case c = random_case(seed);
  const Figures figures = plan(c.source, c.target, c.topology).value().figures;
  const Bounds bounds = brute_force(c);
  RC_ASSERT(figures.needed == bounds.needed);
  RC_ASSERT(figures.moved_bound == bounds.moved);
  RC_ASSERT(figures.moved == bounds.moved);
  RC_ASSERT(figures.crossing_bound == bounds.crossing);
  RC_ASSERT(figures.crossing == bounds.crossing);
  RC_ASSERT(figures.needed == figures.in_place + figures.copied + figures.moved);
}

RC_GTEST_PROP(PlanTest, ThereAndBackAndADetourGiveTheSameBytes, (uint64_t seed)) {
  Case c = random_case(seed);
  const Collection detour = random_collection(c.dice, c.topology, c.tensors);
  const std::vector<Memory> values = random_values(c.dice, c.tensors);
  const auto go = [&](const Collection& a, const Collection& b, const Memories& from) {
    return carry_out(plan(a, b, c.topology).value(), a, b, from);
  };
  const Memories start = fill(c.source, values);
  const Memories there = go(c.source, c.target, start);
  RC_ASSERT(holds(c.source, go(c.target, c.source, there), values));
  const Memories over = go(detour, c.target, go(c.source, detour, start));
  RC_ASSERT(holds(c.target, over, values));
}

RC_GTEST_PROP(PlanTest, EveryMoveComesAfterTheMoveThatFillsItsSource, (uint64_t seed)) {
  const Case c = random_case(seed);
  const Plan made = plan(c.source, c.target, c.topology).value();
  for (uint32_t m = 0; m < made.moves.size(); ++m) {
    const Move& move = made.moves[m];
    if (move.after == kNoMove) continue;
    RC_ASSERT(move.after < m);
    const Move& filler = made.moves[move.after];
    RC_ASSERT(filler.to == move.from && filler.to_holder == move.from_holder);
    RC_ASSERT(filler.box == move.box && filler.tensor == move.tensor);
  }
}

// No source of a byte is nearer than the holder that it comes from. A holder that
// passes a byte on is no farther than the nearest source either.
RC_GTEST_PROP(PlanTest, BytesComeFromTheNearestTierThatHasThem, (uint64_t seed)) {
  const Case c = random_case(seed);
  const Owners have = owners_of(c.source);
  for (const bool forwarding : {true, false}) {
    const Plan made =
        plan(c.source, c.target, c.topology, {.forwarding = forwarding}).value();
    std::map<std::string, const Holder*> by_name;
    for (const Holder& holder : made.holders) by_name[holder.name] = &holder;
    for (const Move& move : made.moves) {
      const Holder& to = made.holders[move.to_holder];
      const Distance used =
          distance_between(c.topology, made.holders[move.from_holder], to);
      const Box& box = made.boxes[move.box];
      for_each_element(
          c.tensors[move.tensor], box, Map{}, [&](int64_t element, int64_t) {
            for (const std::string& name : have[move.tensor].at(element)) {
              RC_ASSERT(used <= distance_between(c.topology, *by_name[name], to));
            }
          });
    }
  }
}

// If memories can pass bytes on, no memory sends the same byte twice.
RC_GTEST_PROP(PlanTest, NoMemorySendsMoreThanItHoldsToOtherMemories, (uint64_t seed)) {
  Dice dice(seed);
  Topology topology = Topology::uniform(static_cast<uint32_t>(2 + dice.below(8)));
  for (Host& host : topology.hosts) host.island = static_cast<uint32_t>(dice.below(3));
  const auto hosts = static_cast<uint32_t>(topology.hosts.size());
  const std::vector<Holder> devices = make_devices(hosts, 2);
  const std::vector<Tensor> tensors{{.name = "w", .shape = {4096, 256}}};
  const Box whole = Box::whole(tensors[0].shape);
  LayoutBuilder old(tensors, devices), fresh(tensors, devices);
  old.add(0, whole, 0, 0);
  for (HolderId h = 1; h < devices.size(); ++h) {
    if (dice.one_in(4)) old.add(0, whole, h, 0);
  }
  for (HolderId h = 0; h < devices.size(); ++h) {
    if (!dice.one_in(3)) fresh.add(0, whole, h, 0);
  }
  const Plan made =
      plan(Collection::create(tensors, std::move(old).build().value()).value(),
           Collection::create(tensors, std::move(fresh).build().value()).value(),
           topology)
          .value();
  for (const HolderLoad& load : made.loads) {
    RC_ASSERT(load.sent + load.forwarded <= tensors[0].bytes() * 11 / 10);
  }
  RC_ASSERT(made.figures.crossing == made.figures.crossing_bound);
}

TEST(PlanTest, ALostBoxIsAnErrorThatNamesTensorAndBox) {
  std::vector<Tensor> tensors(1);
  tensors[0] = {.name = "layers.3.weight", .shape = {4, 6}};
  LayoutBuilder old(tensors, make_devices(1, 2)), fresh(tensors, make_devices(1, 2));
  old.add(0, Box{{0, 4}, {0, 2}}, 0, 0);
  old.add(0, Box{{0, 1}, {2, 6}}, 1, 0);
  fresh.add(0, Box{{0, 4}, {0, 6}}, 0, 0);
  const Collection source =
      Collection::create(tensors, std::move(old).build().value()).value();
  const Collection target =
      Collection::create(tensors, std::move(fresh).build().value()).value();
  const auto made = plan(source, target, Topology::uniform(1));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(made.error().message(),
            "layers.3.weight: box [1:4, 2:6] has no holder left");
}

// The extra memory is what an exchange needs beyond the larger of the old and new
// state.
TEST(PlanTest, ExtraMemoryIsWhatOldAndNewNeedTogether) {
  const std::vector<Tensor> tensors{{.name = "a", .dtype = Dtype::kU8, .shape = {100}},
                                    {.name = "b", .dtype = Dtype::kU8, .shape = {100}}};
  const auto make = [&](Extent a, Extent b, int64_t at_a, int64_t at_b) {
    LayoutBuilder builder(tensors, make_devices(1, 2));
    builder.add(0, Box{a}, 0, at_a);
    builder.add(1, Box{b}, 0, at_b);
    builder.add(0, Box{{0, 100}}, 1, 0);
    builder.add(1, Box{{0, 100}}, 1, 100);
    return Collection::create(tensors, std::move(builder).build().value()).value();
  };
  const auto figures = [&](const Collection& from, const Collection& to) {
    return plan(from, to, Topology::uniform(1)).value().figures;
  };
  const Collection low = make({0, 50}, {0, 50}, 0, 50);
  EXPECT_EQ(figures(low, low).extra_memory, 0);  // all in place
  // Device 0 has 100 bytes and gets 100 others. It needs room for all of them at once,
  // or for one tensor's 50 at a time.
  const Collection high = make({50, 100}, {50, 100}, 200, 250);
  EXPECT_EQ(figures(low, high).extra_memory, 100);
  EXPECT_EQ(figures(low, high).extra_memory_by_tensor, 50);
}

TEST(PlanTest, ATieToAnotherTensorOfTheSourceIsRefused) {
  const std::vector<Tensor> apart{{.name = "a", .shape = {4}},
                                  {.name = "b", .shape = {4}}};
  const std::vector<Tensor> tied{{.name = "a", .shape = {4}, .aliases = {"b"}}};
  LayoutBuilder x(apart, make_devices(1, 1)), y(tied, make_devices(1, 1));
  x.add(0, Box{{0, 4}}, 0, 0);
  x.add(1, Box{{0, 4}}, 0, 16);
  y.add(0, Box{{0, 4}}, 0, 0);
  const auto made =
      plan(Collection::create(apart, std::move(x).build().value()).value(),
           Collection::create(tied, std::move(y).build().value()).value(),
           Topology::uniform(1));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().message(),
            "a: has the alias b, which is another tensor in the source");
}

TEST(PlanTest, AnotherShapeOrDtypeIsRefusedWithBoth) {
  const std::vector<Tensor> a{{.name = "w", .shape = {4}}},
      b{{.name = "w", .shape = {5}}};
  LayoutBuilder x(a, make_devices(1, 1)), y(b, make_devices(1, 1));
  x.add(0, Box{{0, 4}}, 0, 0);
  y.add(0, Box{{0, 5}}, 0, 0);
  const auto made = plan(Collection::create(a, std::move(x).build().value()).value(),
                         Collection::create(b, std::move(y).build().value()).value(),
                         Topology::uniform(1));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().message(), "w: the source has F32 [4]; expected F32 [5]");
}

// Whole tensors, each on a random set of devices; some devices need all of them. There
// are no real bytes, so the tensors can be as large as real ones.
struct Replicated {
  std::vector<Tensor> tensors;
  std::vector<std::set<HolderId>> holders_of;
  Topology topology;
  Collection source, target;
  HolderId newcomers;  // how many devices need everything; they come last
};

Replicated random_replicas(uint64_t seed, uint32_t hosts, HolderId newcomers) {
  Dice dice(seed);
  constexpr uint32_t kPerHost = 3;
  Topology topology = Topology::uniform(hosts + newcomers);
  std::vector<Holder> devices = make_devices(hosts, kPerHost);
  for (HolderId n = 0; n < newcomers; ++n) {
    devices.push_back({.name = fmt::format("new-{}", n), .host = hosts + n});
  }
  for (const Holder& device : devices) {
    if (dice.one_in(4)) topology.bandwidth_of.emplace_back(device.name, 2'500'000'000);
  }
  std::vector<Tensor> tensors(static_cast<size_t>(1 + dice.below(12)));
  std::vector<std::set<HolderId>> holders_of(tensors.size());
  for (TensorId t = 0; t < tensors.size(); ++t) {
    tensors[t].name = fmt::format("t{}", t);
    tensors[t].shape = {1 + dice.below(300), 1 + dice.below(40'000)};
  }
  LayoutBuilder old(tensors, devices), fresh(tensors, devices);
  for (TensorId t = 0; t < tensors.size(); ++t) {
    const Box whole = Box::whole(tensors[t].shape);
    for (int64_t n = 1 + dice.below(5); n > 0; --n) {
      holders_of[t].insert(static_cast<HolderId>(dice.below(hosts * kPerHost)));
    }
    for (const HolderId h : holders_of[t]) old.add(t, whole, h, int64_t{t} << 32);
    for (HolderId n = 0; n < newcomers; ++n) {
      fresh.add(t, whole, hosts * kPerHost + n, int64_t{t} << 32);
    }
  }
  Collection source =
      Collection::create(tensors, std::move(old).build().value()).value();
  Collection target =
      Collection::create(tensors, std::move(fresh).build().value()).value();
  return {tensors,           holders_of,        topology,
          std::move(source), std::move(target), newcomers};
}

// The least possible time of the busiest sender in seconds, found by trying every set
// of senders: the bytes that only the set can send, divided by the set's bandwidth.
double least_time(const Replicated& r, const std::vector<Holder>& holders,
                  int64_t copies) {
  double worst = 0;
  const uint32_t senders = static_cast<uint32_t>(holders.size()) - r.newcomers;
  for (uint32_t set = 1; set < 1u << senders; ++set) {
    double bytes = 0, bandwidth = 0;
    for (HolderId h = 0; h < senders; ++h) {
      if (set >> h & 1)
        bandwidth += static_cast<double>(r.topology.bandwidth(holders[h]));
    }
    for (TensorId t = 0; t < r.tensors.size(); ++t) {
      const bool inside = std::ranges::all_of(
          r.holders_of[t], [&](HolderId h) { return (set >> h & 1) != 0; });
      if (inside) bytes += static_cast<double>(copies * r.tensors[t].bytes());
    }
    worst = std::max(worst, bytes / bandwidth);
  }
  return worst;
}

RC_GTEST_PROP(PlanTest, EgressIsWithinTwoPercentOfTheBestOfAllSenderSets,
              (uint64_t seed)) {
  const bool two = seed % 2 == 0;
  const Replicated r = random_replicas(seed, 3, two ? 2 : 1);
  for (const bool forwarding : {true, false}) {
    const Plan made =
        plan(r.source, r.target, r.topology, {.forwarding = forwarding}).value();
    const double best = least_time(r, made.holders, two ? 2 : 1);
    for (HolderId h = 0; h < made.holders.size(); ++h) {
      const auto bandwidth = static_cast<double>(r.topology.bandwidth(made.holders[h]));
      RC_ASSERT(static_cast<double>(made.loads[h].sent) <=
                1.02 * best * bandwidth + 65536);
    }
    // The plan's figures say the same.
    if (!forwarding) {
      RC_ASSERT(std::abs(static_cast<double>(made.figures.egress_bound_ns) -
                         best * 1e9) <= 2.0);
    }
    RC_ASSERT(made.figures.moved == made.figures.moved_bound);
  }
}

// One replica of a model becomes many, on hosts of four devices: no source may send
// more than 1.1 times the bytes that it holds, and each host imports the state once.
TEST(PlanTest, GrowingFromOneReplicaToEightRelaysInsteadOfSendingEightTimes) {
  std::vector<Tensor> tensors;
  for (int t = 0; t < 5; ++t) {
    tensors.push_back({.name = fmt::format("t{}", t), .shape = {1000, 1000 + t}});
  }
  for (const uint32_t replicas : {2u, 3u, 8u, 16u}) {
    const std::vector<Holder> devices = make_devices(4, 4);
    LayoutBuilder old(tensors, devices), fresh(tensors, devices);
    for (TensorId t = 0; t < tensors.size(); ++t) {
      old.add(t, Box::whole(tensors[t].shape), 0, int64_t{t} << 30);
      for (HolderId h = 0; h < replicas; ++h) {
        fresh.add(t, Box::whole(tensors[t].shape), h, int64_t{t} << 30);
      }
    }
    const Collection source =
        Collection::create(tensors, std::move(old).build().value()).value();
    const Collection target =
        Collection::create(tensors, std::move(fresh).build().value()).value();
    const Plan made = plan(source, target, Topology::uniform(4)).value();
    EXPECT_EQ(made.figures.in_place, source.bytes());
    EXPECT_EQ(made.figures.moved, source.bytes() * (replicas - 1));
    EXPECT_EQ(made.figures.crossing, source.bytes() * ((replicas + 3) / 4 - 1));
    for (const HolderLoad& load : made.loads) {
      EXPECT_LE(load.sent + load.forwarded, source.bytes() * 11 / 10);
    }
  }
}

TEST(PlanTest, ReplicasShareOneBigTensorByRowsEachWithinARow) {
  for (const uint32_t senders : {2u, 8u, 64u, 255u}) {
    const std::vector<Tensor> tensors{
        {.name = "embedding", .dtype = Dtype::kU8, .shape = {6431, 32768}}};
    const std::vector<Holder> devices = make_devices(senders + 1, 1);
    LayoutBuilder old(tensors, devices), fresh(tensors, devices);
    const Box whole = Box::whole(tensors[0].shape);
    for (HolderId h = 0; h < senders; ++h) old.add(0, whole, h, 0);
    fresh.add(0, whole, senders, 0);
    const Plan made =
        plan(Collection::create(tensors, std::move(old).build().value()).value(),
             Collection::create(tensors, std::move(fresh).build().value()).value(),
             Topology::uniform(senders + 1))
            .value();
    const int64_t even = tensors[0].bytes() / senders;
    EXPECT_EQ(made.moves.size(), senders);
    for (HolderId h = 0; h < senders; ++h) {
      EXPECT_LE(std::abs(made.loads[h].sent - even), 32 << 10) << senders;
    }
  }
}

}  // namespace
}  // namespace holdfast::plan_test
