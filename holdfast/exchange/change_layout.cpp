#include "holdfast/exchange/change_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "holdfast/exchange/exchange_agreement.h"
#include "holdfast/memory/piece_description.h"

namespace holdfast {
namespace {

// What a rank holds, and what it wants to hold.
struct TwoLayouts {
  SharedCollection before;
  SharedCollection after;
};

Result<TwoLayouts> check_own(const LayoutChange& change, const PieceStorage& storage) {
  const LocalState old{.collection = HOLDFAST_TRY(collection_of_pieces(change.old)),
                       .pieces = without_nothing(change.old)};
  HOLDFAST_TRY(old.check());
  HOLDFAST_TRY(storage.check());
  return TwoLayouts{.before = old.collection,
                    .after = HOLDFAST_TRY(collection_of_pieces(change.wanted))};
}

// The texts of both layouts. The first line is the number of bytes of the first text.
std::string encode(const Result<TwoLayouts>& own) {
  const Bytes before =
      own.ok() ? description_of(*own->before) : failed_description(own.error());
  const Bytes after =
      own.ok() ? description_of(*own->after) : failed_description(own.error());
  return fmt::format("{}\n{}{}", before.size(), text_of(before), text_of(after));
}

Result<std::pair<std::string_view, std::string_view>> decode(std::string_view text,
                                                             size_t rank) {
  size_t bytes = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), bytes);
  const auto line = static_cast<size_t>(end - text.data());
  if (error != std::errc() || line >= text.size() || text[line] != '\n' ||
      bytes > text.size() - line - 1) {
    return corrupt("rank {}: says nothing of its pieces that can be read; expected what "
                   "it holds and wants",
                   rank);
  }
  const std::string_view both = text.substr(line + 1);
  return std::pair(both.substr(0, bytes), both.substr(bytes));
}

// What all ranks have said, in layouts whose holder r is rank r, and the plan from the
// one to the other. The same on all ranks, also its errors.
struct PlannedChange {
  Collection source;
  Collection target;
  Plan plan;
};

Result<PlannedChange> plan_change(const std::vector<Peer>& peers, int rank,
                                  const Result<TwoLayouts>& own) {
  std::vector<std::string_view> before, after;
  for (size_t r = 0; r < peers.size(); ++r) {
    const auto [first, second] = HOLDFAST_TRY(decode(text_of(peers[r].said), r));
    before.push_back(first);
    after.push_back(second);
  }
  const auto self = static_cast<size_t>(rank);
  const TwoLayouts known = own.ok() ? *own : TwoLayouts();
  const auto held =
      HOLDFAST_TRY(parse_descriptions(before, before[self], known.before));
  const auto wanted = HOLDFAST_TRY(parse_descriptions(after, after[self], known.after));
  LiveHolders live = holders_of(peers);
  PiecesOfRanks all(std::move(live.holders));
  for (size_t r = 0; r < peers.size(); ++r) {
    HOLDFAST_TRY(all.add_all(static_cast<int>(r), *held[r], When::kBefore));
  }
  for (size_t r = 0; r < peers.size(); ++r) {
    HOLDFAST_TRY(all.add_all(static_cast<int>(r), *wanted[r], When::kAfter));
  }
  Collection source = HOLDFAST_TRY(all.build(When::kBefore));
  Collection target = HOLDFAST_TRY(all.build(When::kAfter));
  Plan moves = HOLDFAST_TRY(plan(source, target, live.topology));
  return PlannedChange{std::move(source), std::move(target), std::move(moves)};
}

}  // namespace

Result<Exchanged> change_layout(Env& env, Transport& transport,
                                const LayoutChange& change, PieceStorage& storage,
                                const ExchangeOptions& options) {
  const Result<TwoLayouts> own = check_own(change, storage);
  const std::string said = encode(own);
  const Instant come_by = std::min(options.deadline, env.now() + options.patience);
  const ExchangeAgreement met = HOLDFAST_TRY(
      agree_to_exchange(env, transport, {.deadline = come_by}, bytes_of(said)));
  const PlannedChange planned =
      HOLDFAST_TRY(plan_change(met.peers, transport.rank(), own));
  const auto self = static_cast<size_t>(transport.rank());
  return exchange(env, transport,
                  {.source = &planned.source,
                   .target = &planned.target,
                   .plan = &planned.plan,
                   .holder = planned.source.layout().holders()[self].name,
                   .old = change.old},
                  storage, options);
}

}  // namespace holdfast
