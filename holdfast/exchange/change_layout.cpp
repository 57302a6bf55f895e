#include "holdfast/exchange/change_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "holdfast/base/number_text.h"
#include "holdfast/exchange/exchange_agreement.h"
#include "holdfast/memory/piece_description.h"
#include "holdfast/plan/placement.h"
#include "holdfast/transport/agreement.h"

namespace holdfast {
namespace {

// What a rank holds, and what it wants to hold.
struct TwoLayouts {
  SharedCollection before;
  SharedCollection after;
};

Result<TwoLayouts> check_own(const LayoutChange& change, const PieceStorage* storage) {
  const LocalState old{.collection = HOLDFAST_TRY(collection_of_pieces(change.old)),
                       .pieces = without_nothing(change.old)};
  HOLDFAST_TRY(old.check());
  if (storage != nullptr) HOLDFAST_TRY(storage->check());
  return TwoLayouts{.before = old.collection,
                    .after = HOLDFAST_TRY(collection_of_pieces(change.wanted))};
}

// The texts of both layouts. The first line is the number of bytes of the first text.
Bytes encode(const TwoLayouts& own) {
  const Bytes before = description_of(*own.before);
  const std::string text = fmt::format("{}\n{}{}", before.size(), text_of(before),
                                       text_of(description_of(*own.after)));
  return copy_of(bytes_of(text));
}

Result<std::pair<std::string, std::string>> decode(ByteView said) {
  const Bytes both = HOLDFAST_TRY(decode_outcome(said));
  std::string_view text = text_of(both);
  const auto bytes = take_number<size_t>(text);
  if (!bytes || !text.starts_with('\n') || *bytes > text.size() - 1) {
    return corrupt("says nothing of its pieces that can be read; expected what it holds "
                   "and wants");
  }
  text.remove_prefix(1);
  return std::pair(std::string(text.substr(0, *bytes)), std::string(text.substr(*bytes)));
}

// What all ranks have said, by rank. The same on all ranks, also its errors.
struct Told {
  std::vector<SharedCollection> held, wanted;
  LiveHolders live;
};

Result<Told> hear_all(Env& env, Transport& transport, const LayoutChange& change,
                      const PieceStorage* storage, Instant come_by) {
  const Result<TwoLayouts> own = check_own(change, storage);
  const Bytes said =
      encode_outcome(own.ok() ? Result<Bytes>(encode(*own)) : own.error());
  const ExchangeAgreement met = HOLDFAST_TRY(
      agree_to_exchange(env, transport, {.deadline = come_by}, said));
  std::vector<std::pair<std::string, std::string>> texts;
  for (size_t r = 0; r < met.peers.size(); ++r) {
    texts.push_back(HOLDFAST_TRY(
        decode(met.peers[r].said).within(fmt::format("rank {}", r))));
  }
  std::vector<std::string_view> before, after;
  for (const auto& [first, second] : texts) {
    before.push_back(first);
    after.push_back(second);
  }
  const auto self = static_cast<size_t>(transport.rank());
  const TwoLayouts known = own.ok() ? *own : TwoLayouts();
  return Told{.held = HOLDFAST_TRY(parse_descriptions(before, before[self], known.before)),
              .wanted = HOLDFAST_TRY(parse_descriptions(after, after[self], known.after)),
              .live = holders_of(met.peers)};
}

// Layouts whose holder r is rank r, and the plan from the one to the other.
struct PlannedChange {
  Collection source;
  Collection target;
  Plan plan;
};

// `place_of[r]` is the rank whose wanted pieces rank r shall have; -1 for none.
Result<PlannedChange> plan_change(const Told& told, const std::vector<int>& place_of) {
  PiecesOfRanks all(told.live.holders);
  for (size_t r = 0; r < told.held.size(); ++r) {
    HOLDFAST_TRY(all.add_all(static_cast<int>(r), *told.held[r], When::kBefore));
  }
  for (size_t r = 0; r < place_of.size(); ++r) {
    if (place_of[r] < 0) continue;
    const auto teller = static_cast<size_t>(place_of[r]);
    HOLDFAST_TRY(all.add_all(static_cast<int>(r), *told.wanted[teller], When::kAfter));
  }
  Collection source = HOLDFAST_TRY(all.build(When::kBefore));
  Collection target = HOLDFAST_TRY(all.build(When::kAfter));
  Plan moves = HOLDFAST_TRY(plan(source, target, told.live.topology));
  return PlannedChange{std::move(source), std::move(target), std::move(moves)};
}

// What is wanted, by places: holder p is place p.
Result<Collection> layout_of_places(const Told& told, const std::vector<int>& told_by) {
  std::vector<Holder> holders;
  for (const int teller : told_by) {
    holders.push_back(told.live.holders[static_cast<size_t>(teller)]);
  }
  PiecesOfRanks places(std::move(holders));
  for (size_t p = 0; p < told_by.size(); ++p) {
    const auto teller = static_cast<size_t>(told_by[p]);
    HOLDFAST_TRY(places.add_all(static_cast<int>(p), *told.wanted[teller]));
  }
  return places.build();
}

Result<void> check(const Places& places, int ranks) {
  const auto is_rank = [&](int one) { return one >= 0 && one < ranks; };
  if (!std::ranges::all_of(places.told_by, is_rank) ||
      !std::ranges::all_of(places.able, is_rank) || places.told_by.empty()) {
    return invalid("places of another number of ranks; expected ranks 0 to {}", ranks - 1);
  }
  return {};
}

}  // namespace

Result<Exchanged> change_layout(Env& env, Transport& transport,
                                const LayoutChange& change, PieceStorage& storage,
                                const ExchangeOptions& options) {
  const Instant come_by = std::min(options.deadline, env.now() + options.patience);
  const Told told = HOLDFAST_TRY(hear_all(env, transport, change, &storage, come_by));
  std::vector<int> own_places(told.wanted.size());
  std::iota(own_places.begin(), own_places.end(), 0);
  const PlannedChange planned = HOLDFAST_TRY(plan_change(told, own_places));
  const auto self = static_cast<size_t>(transport.rank());
  return exchange(env, transport,
                  {.source = &planned.source,
                   .target = &planned.target,
                   .plan = &planned.plan,
                   .holder = planned.source.layout().holders()[self].name,
                   .old = change.old},
                  storage, options);
}

Result<PlacedRanks> place_ranks(Env& env, Transport& transport,
                                const LayoutChange& change, const Places& places,
                                const ExchangeOptions& options) {
  HOLDFAST_TRY(check(places, transport.size()));
  const Instant come_by = std::min(options.deadline, env.now() + options.patience);
  const Told told = HOLDFAST_TRY(hear_all(env, transport, change, nullptr, come_by));
  std::vector<int> place_of(told.wanted.size(), -1);
  for (const int teller : places.told_by) place_of[static_cast<size_t>(teller)] = teller;
  const PlannedChange as_told = HOLDFAST_TRY(plan_change(told, place_of));
  std::vector<Holder> devices;
  for (const int rank : places.able) {
    devices.push_back(told.live.holders[static_cast<size_t>(rank)]);
  }
  const Collection wanted = HOLDFAST_TRY(layout_of_places(told, places.told_by));
  const Placement placed = HOLDFAST_TRY(
      place(as_told.source, wanted, told.live.topology, devices,
            {.positions = static_cast<uint32_t>(places.told_by.size()), .group = places.group}));
  PlacedRanks found{.moved_as_told = as_told.plan.figures.moved,
                    .needed = as_told.plan.figures.needed};
  std::ranges::fill(place_of, -1);
  for (size_t p = 0; p < places.told_by.size(); ++p) {
    const int rank = places.able[placed.device_of_position[p]];
    place_of[static_cast<size_t>(rank)] = places.told_by[p];
    found.ranks.push_back(rank);
  }
  found.moved = HOLDFAST_TRY(plan_change(told, place_of)).plan.figures.moved;
  return found;
}

}  // namespace holdfast
