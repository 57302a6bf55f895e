#include "holdfast/exchange/fill.h"

#include <algorithm>
#include <map>
#include <utility>

#include "holdfast/exchange/exchange_agreement.h"
#include "holdfast/exchange/move_pieces.h"
#include "holdfast/exchange/storage.h"
#include "holdfast/memory/piece_description.h"
#include "holdfast/plan/plan.h"

namespace holdfast {
namespace {

// The two collections have the same tensors and the same holders: holder r is rank r.
struct FillPlan {
  Collection source;
  Collection target;
  Plan plan;
};

// Checks this rank's pieces and returns their collection.
Result<SharedCollection> check_pieces(const LocalPieces& pieces, bool is_whole) {
  LocalState state{.collection = HOLDFAST_TRY(collection_of_pieces(pieces)),
                   .pieces = pieces};
  if (std::ranges::any_of(pieces, is_nothing)) {
    std::erase_if(state.pieces.edit(), is_nothing);
  }
  HOLDFAST_TRY(state.check());
  if (!is_whole) HOLDFAST_TRY(check_no_overlap(state));
  return state.collection;
}

// What a rank hears of the pieces of all ranks, by rank.
struct FillMeeting {
  ExchangeAgreement meeting;
  std::vector<SharedCollection> pieces;
};

// Fails alike on all ranks, naming the rank, if one of them passes pieces that are wrong.
Result<FillMeeting> meet_for_fill(Env& env, Transport& transport,
                                  const LocalPieces& pieces,
                                  const FillOptions& options) {
  const Result<SharedCollection> own = check_pieces(pieces, options.is_whole);
  const Bytes own_text =
      own.ok() ? description_of(**own) : failed_description(own.error());
  FillMeeting met{.meeting = HOLDFAST_TRY(
                      meet(env, transport,
                           {.is_whole = options.is_whole,
                            .direct = false,
                            .shared_memory = options.shared_memory,
                            .deadline = options.deadline},
                           own_text)),
                  .pieces = {}};
  std::vector<std::string_view> texts;
  for (const Peer& peer : met.meeting.peers) texts.push_back(text_of(peer.said));
  met.pieces = HOLDFAST_TRY(parse_descriptions(
      texts, text_of(own_text), own.ok() ? *own : SharedCollection()));
  return met;
}

// The same on all ranks, also its errors.
Result<FillPlan> plan_fill(const FillMeeting& met) {
  LiveHolders live = holders_of(met.meeting.peers);
  PiecesOfRanks all(std::move(live.holders));
  std::vector<bool> whole, to_fill;
  for (size_t r = 0; r < met.pieces.size(); ++r) {
    HOLDFAST_TRY(all.add_all(static_cast<int>(r), *met.pieces[r]));
    whole.push_back(met.meeting.peers[r].is_whole);
    to_fill.push_back(!whole.back());
  }
  Collection source = HOLDFAST_TRY(all.build_for(whole));
  Collection target = HOLDFAST_TRY(all.build_for(to_fill));
  // No rank passes on what it received, so no move waits for another.
  Plan moves = HOLDFAST_TRY(
      plan(source, target, live.topology, PlanOptions{.forwarding = false}));
  return FillPlan{std::move(source), std::move(target), std::move(moves)};
}

// Some of the time is left for telling all ranks how it went.
Instant moved_by(Env& env, Instant deadline) {
  if (deadline == kNoDeadline) return kNoDeadline;
  constexpr Duration kMostToSettle = std::chrono::seconds(5);
  return deadline - std::min<Duration>((deadline - env.now()) / 4, kMostToSettle);
}

Result<MoveCounts> carry_out(const FillPlan& fill, const LocalPieces& pieces,
                             bool is_whole, int rank, const MoveOptions& options) {
  SharedPlan shared{
      .source = &fill.source, .target = &fill.target, .plan = &fill.plan};
  for (size_t r = 0; r < fill.plan.holders.size(); ++r) {
    shared.rank_of.push_back(static_cast<int>(r));
  }
  const LocalPieces old = is_whole ? pieces : LocalPieces();
  GivenStorage storage(pieces);
  OwnMoves moves(shared, rank, old, storage.keeps_boxes());
  MemoryCount memory;
  for (uint32_t i = 0; i < moves.fresh.size(); ++i) {
    HOLDFAST_TRY(make_piece_of(moves, i, storage, memory));
  }
  std::vector<bool> released;
  return move_pieces(moves, old, storage, options, memory, released);
}

}  // namespace

Result<Filled> fill_from_peers(Env& env, Transport& transport,
                               const LocalPieces& pieces, const FillOptions& options) {
  const FillMeeting met =
      HOLDFAST_TRY(meet_for_fill(env, transport, pieces, options).within("fill"));
  const FillPlan fill = HOLDFAST_TRY(plan_fill(met).within("fill"));
  const Instant until = moved_by(env, met.meeting.deadline);
  const Result<MoveCounts> moved = carry_out(
      fill, pieces, options.is_whole, transport.rank(),
      {.env = &env,
       .link_to =
           [&](int peer) { return met.meeting.link_to(env, transport, peer, until); },
       .stream = options.stream,
       .grants = false,
       .seals = true,
       .deadline = until});
  const Result<void> own = moved.ok() ? Result<void>() : moved.error();
  HOLDFAST_TRY(settle(transport, own, met.meeting.deadline).within("fill"));
  constexpr auto kRing = static_cast<size_t>(Carrier::kRing);
  Filled filled{.moved = fill.plan.figures.moved,
                .shared = moved->received[kRing] + moved->sent[kRing]};
  for (const int64_t bytes : moved->received) filled.received += bytes;
  for (const int64_t bytes : moved->sent) filled.sent += bytes;
  return filled;
}

}  // namespace holdfast
