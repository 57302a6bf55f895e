#include "holdfast/exchange/exchange.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "holdfast/device/device.h"
#include "holdfast/env/free_memory.h"
#include "holdfast/exchange/exchange_agreement.h"
#include "holdfast/exchange/move_pieces.h"
#include "holdfast/exchange/state_seals.h"
#include "holdfast/memory/piece_description.h"
#include "holdfast/plan/fingerprint.h"
#include "holdfast/transport/agreement.h"

namespace holdfast {
namespace {

constexpr Tag kCommit = 3;  // added to the tag of the exchange
constexpr std::string_view kCommitWord = "commit";
constexpr std::string_view kAbortWord = "abort";
constexpr int64_t kMostBytes = int64_t{1} << 60;
// Memory of a host that is left for buffers and for everything else.
constexpr int64_t kMemoryReserve = int64_t{64} << 20;

// When the phases must have ended.
struct PhaseTimes {
  Instant prepared_by{}, moved_by{}, verified_by{}, committed_by{};

  PhaseTimes() = default;
  PhaseTimes(Instant now, Instant deadline) : committed_by(deadline) {
    const Duration all = std::max<Duration>(deadline - now, Duration(0));
    prepared_by = now + all / 4;
    moved_by = now + all / 2;
    verified_by = now + all * 3 / 4;
  }
};

// How long the busiest rank may take.
Duration time_for(const ExchangeTask& task, const ExchangeOptions& options) {
  int64_t moved = 0, held = 0;
  for (const HolderLoad& load : task.plan->loads) {
    moved = std::max(moved, load.sent + load.forwarded + load.received);
  }
  for (const Collection* state : {task.source, task.target}) {
    for (const int64_t bytes : state->bytes_held()) held = std::max(held, bytes);
  }
  const double seconds = static_cast<double>(moved + 2 * held) /
                         static_cast<double>(std::max<int64_t>(options.slowest, 1));
  return options.patience +
         std::chrono::duration_cast<Duration>(
             std::chrono::duration<double>(std::min(seconds, 1e9)));
}

// What must be the same on all ranks.
std::string common_text(const ExchangeTask& task, const ExchangeOptions& options) {
  return fmt::format("{} {} {} {} {}", fingerprint(*task.source).hex(),
                     fingerprint(*task.target).hex(), fingerprint(*task.plan).hex(),
                     name_of(options.mode),
                     options.proof == ExchangeProof::kMoved ? "moved" : "state");
}

// The ranks of the holders, by their names. Fails if two ranks say the same name, or a
// holder that has pieces has no rank.
Result<std::vector<int>> ranks_of(std::span<const Holder> holders,
                                  const std::vector<bool>& has_pieces,
                                  const std::vector<Peer>& peers) {
  std::map<std::string_view, int> by_name;
  for (size_t r = 0; r < peers.size(); ++r) {
    const auto [known, added] =
        by_name.emplace(peers[r].name, static_cast<int>(r));
    if (!added) {
      return invalid("{}: ranks {} and {} both say that they are this holder; expected "
                     "one",
                     peers[r].name, known->second, r);
    }
  }
  std::vector<int> ranks;
  for (size_t h = 0; h < holders.size(); ++h) {
    const auto found = by_name.find(holders[h].name);
    ranks.push_back(found == by_name.end() ? -1 : found->second);
    if (!has_pieces[h]) continue;
    if (holders[h].kind != HolderKind::kMemory) {
      return unsupported("{}: is a file; expected the memory of a rank",
                         holders[h].name);
    }
    if (ranks.back() < 0) {
      return invalid("{}: no rank is this holder; expected one", holders[h].name);
    }
  }
  return ranks;
}

std::vector<bool> with_pieces(const Layout& layout) {
  std::vector<bool> has(layout.holders().size());
  for (PieceId p = 0; p < layout.piece_count(); ++p) has[layout.holder(p)] = true;
  return has;
}

// The boxes that a holder has, by the names of their tensors, and the bytes of each.
std::map<std::pair<std::string_view, Box>, int64_t> boxes_of(const Collection& state,
                                                             std::string_view holder) {
  std::map<std::pair<std::string_view, Box>, int64_t> boxes;
  const Layout& layout = state.layout();
  const auto found = std::ranges::find(layout.holders(), holder, &Holder::name);
  const auto self = static_cast<size_t>(found - layout.holders().begin());
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    const Tensor& tensor = state.tensor(t);
    for (const Slice& slice : layout.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        if (layout.holder(p) != self) continue;
        boxes[{tensor.name, slice.box}] = slice.box.elements() * bytes_of(tensor.dtype);
      }
    }
  }
  return boxes;
}

// The bytes of the boxes that a holder has in the target and not in the source.
int64_t new_bytes(const Collection& source, const Collection& target,
                  std::string_view holder) {
  const auto old = boxes_of(source, holder);
  int64_t bytes = 0;
  for (const auto& [box, size] : boxes_of(target, holder)) {
    if (!old.contains(box)) bytes += size;
  }
  return bytes;
}

class Exchange {
 public:
  Exchange(Env& env, Transport& transport, const ExchangeTask& task,
           PieceStorage& storage, const ExchangeOptions& options)
      : env_(env),
        transport_(transport),
        task_(task),
        storage_(storage),
        options_(options),
        old_(without_nothing(task.old)) {}

  Result<Exchanged> run() {
    Result<Exchanged> done = carry_out();
    if (done.ok()) return done;
    for (const NewPiece& piece : fresh()) {
      const bool made = piece.kept == kNothing && piece.piece.memory.data() != nullptr;
      if (made) storage_.discard(piece.piece);
    }
    if (std::ranges::count(released_, true) == 0) return done;
    return Error(done.error().code(),
                 done.error().message() +
                     " (old pieces were released, so the state of this rank is lost)");
  }

 private:
  JobRanks ranks() const { return {.env = &env_, .transport = &transport_}; }

  Result<Exchanged> carry_out() {
    const Instant begun = env_.now();
    const Result<void> agreed = agree(begun);
    const Result<Bytes> sealed = agreed.ok() ? prepare() : agreed.error();
    const Result<Round> ready = hold_round(ranks(), sealed, times_.prepared_by);
    // Either all ranks heard it, or this rank has no streams to end.
    if (ready.ok() && ready->failed) return *ready->failed;
    if (!agreed.ok()) return agreed.error();
    const Result<std::vector<Seal>> before = merged(*before_, ready);
    // All ranks that heard all others come to the same result.
    if (ready.ok() && !before.ok()) return before.error();

    const Instant prepared = env_.now();
    const Result<MoveCounts> moved = before.ok() ? move() : refuse(before.error());
    const Instant copied = env_.now();
    const Result<Bytes> resealed = moved.ok() ? seal_fresh() : moved.error();
    const Result<Round> finished = hold_round(ranks(), resealed, times_.verified_by);
    if (finished.ok() && finished->failed) return *finished->failed;
    const Result<void> verdict = before.ok() ? judge(*before, finished) : before.error();
    if (finished.ok() && !verdict.ok()) return verdict.error();
    HOLDFAST_TRY(commit(verdict));
    Exchanged done =
        result(*moved, prepared - begun, copied - prepared, env_.now() - copied);
    done.seals = *before;
    return done;
  }

  // Phase 1, until all ranks know each other.
  Result<void> agree(Instant begun) {
    const Instant deadline =
        std::min(options_.deadline, begun + time_for(task_, options_));
    times_ = PhaseTimes(begun, deadline);
    const ExchangeAgreement meeting =
        HOLDFAST_TRY(agree_to_exchange(env_, transport_,
                                       {.name = task_.holder,
                                        .agreed = common_text(task_, options_),
                                        .needs = host_bytes_needed(),
                                        .direct = options_.direct && seals_state(),
                                        .shared_memory = options_.shared_memory,
                                        .deadline = deadline},
                                       {}));
    meeting_ = meeting;
    // From here on the time counts, for all ranks alike: they have met at about the same
    // time, and a rank that came early has waited for the others.
    times_ = PhaseTimes(env_.now(), std::min(options_.deadline, meeting.deadline));
    for (size_t r = 0; r < meeting.peers.size(); ++r) {
      if (meeting.peers[r].agreed == meeting.peers[0].agreed) continue;
      return invalid(
          "rank {}: has other layouts, another plan or another mode than rank 0; "
          "expected the same",
          r);
    }
    HOLDFAST_TRY(check_host_memory());
    const Layout &source = task_.source->layout(), &target = task_.target->layout();
    before_ = std::make_unique<StateSeals>(
        *task_.source, *task_.target,
        HOLDFAST_TRY(ranks_of(source.holders(), with_pieces(source), meeting.peers)));
    after_ = std::make_unique<StateSeals>(
        *task_.target, *task_.target,
        HOLDFAST_TRY(ranks_of(target.holders(), with_pieces(target), meeting.peers)));
    const std::vector<Holder>& holders = task_.plan->holders;
    shared_ = {.source = task_.source, .target = task_.target, .plan = task_.plan};
    shared_.rank_of = HOLDFAST_TRY(
        ranks_of(holders, std::vector<bool>(holders.size()), meeting.peers));
    return {};
  }

  // In windowed mode old pieces make room for new ones: then this is what is needed at
  // least.
  int64_t host_bytes_needed() const {
    if (!storage_.takes_host_memory()) return 0;
    const int64_t fresh = new_bytes(*task_.source, *task_.target, task_.holder);
    if (options_.mode == ExchangeMode::kShadow) return fresh;
    int64_t held = 0;
    for (const LocalPiece& piece : old_) {
      held += piece.device == nullptr ? piece.bytes() : 0;
    }
    return std::max<int64_t>(fresh - held, 0);
  }

  // No rank has written to new memory yet, so that all ranks of a host see the same.
  Result<void> check_host_memory() {
    const Peer& own = meeting_.peers[static_cast<size_t>(transport_.rank())];
    int64_t needed = 0;
    int ranks = 0;
    for (const Peer& peer : meeting_.peers) {
      if (peer.host != own.host || peer.needs == 0) continue;
      needed += std::min(peer.needs, kMostBytes - needed);
      ++ranks;
    }
    const int64_t free = needed > 0 ? free_memory(env_) : 0;
    if (needed == 0 || free - kMemoryReserve >= needed) return {};
    return no_space(
        "memory: {} bytes of this host are free; expected {} for the new pieces of {} "
        "ranks, and a reserve of {}",
        free, needed, ranks, kMemoryReserve);
  }

  // The rest of phase 1: what this rank does alone.
  Result<Bytes> prepare() {
    HOLDFAST_TRY(check_old());
    moves_ =
        std::make_unique<OwnMoves>(shared_, transport_.rank(), old_, storage_);
    for (const LocalPiece& piece : old_) memory_.add(piece.bytes());
    if (options_.mode == ExchangeMode::kShadow) {
      for (uint32_t i = 0; i < moves_->fresh.size(); ++i) {
        HOLDFAST_TRY(make_piece_of(*moves_, i, storage_, memory_));
      }
    }
    // The seals are those of what the caller's stream leaves in the old pieces.
    HOLDFAST_TRY(follow_stream(devices_of(old_), options_.stream));
    return seals_state() ? before_->seal_own(transport_.rank(), old_) : Bytes();
  }

  Result<void> check_old() const {
    const auto holders = task_.source->layout().holders();
    const auto own = std::ranges::find(holders, task_.holder, &Holder::name);
    if (own == holders.end()) {
      if (old_.empty()) return {};
      return invalid("{}: has pieces, but is no holder of the source; expected none",
                     task_.holder);
    }
    // Somebody else owns the collection.
    const std::shared_ptr<const Collection> source(std::shared_ptr<const Collection>(),
                                                   task_.source);
    const LocalState state{.collection = source,
                           .rank = static_cast<int>(own - holders.begin()),
                           .pieces = old_};
    return state.check();
  }

  MoveOptions move_options() {
    return {.env = &env_,
            .link_to =
                [this](int peer) {
                  return meeting_.link_to(env_, transport_, peer, times_.moved_by);
                },
            .stream = options_.stream,
            .windowed = options_.mode == ExchangeMode::kWindowed,
            .seals = !seals_state(),
            .on_the_way = options_.on_the_way,
            .deadline = times_.moved_by};
  }
  Result<MoveCounts> move() {
    return move_pieces(*moves_, old_, storage_, move_options(), memory_, released_);
  }
  // This rank does not know whether the others go on. Those that do must not wait for it.
  Error refuse(const Error& why) {
    if (moves_ != nullptr) refuse_streams(*moves_, move_options());
    return why;
  }

  Result<Bytes> seal_fresh() {
    std::vector<LocalPiece> pieces;
    for (const NewPiece& piece : fresh()) pieces.push_back(piece.piece);
    pieces_ = std::move(pieces);
    return seals_state() ? after_->seal_own(transport_.rank(), pieces_) : Bytes();
  }
  bool seals_state() const { return options_.proof == ExchangeProof::kState; }

  // Nothing if the state is not sealed.
  Result<std::vector<Seal>> merged(const StateSeals& seals,
                                   const Result<Round>& heard) const {
    if (!heard.ok()) return heard.error();
    return seals_state() ? seals.merge(heard->said) : std::vector<Seal>();
  }
  Result<void> judge(const std::vector<Seal>& before, const Result<Round>& heard) const {
    const std::vector<Seal> after = HOLDFAST_TRY(merged(*after_, heard));
    return seals_state() ? compare_seals(*task_.target, before, after) : Result<void>();
  }

  // Phase 4.
  Result<void> commit(const Result<void>& verdict) {
    const std::string_view word = verdict.ok() ? kCommitWord : kAbortWord;
    const int size = transport_.size(), own = transport_.rank();
    const Tag tag = meeting_.tag + kCommit;
    for (int r = 0; r < size; ++r) {
      if (r == own) continue;
      // A rank that is gone cannot be told.
      static_cast<void>(transport_.send(r, tag, bytes_of(word), times_.committed_by));
    }
    HOLDFAST_TRY(verdict);
    for (int r = 0; r < size; ++r) {
      if (r == own) continue;
      // A rank that is not heard has heard all others before, or its "abort" was a second
      // fault: so silence is no reason to abort.
      const Result<Bytes> said = transport_.recv(r, tag, times_.committed_by);
      if (said.ok() && text_of(*said) != kCommitWord) {
        return unavailable("rank {}: did not hear all ranks, so nothing is committed", r);
      }
    }
    return {};
  }

  Exchanged result(const MoveCounts& counts, Duration prepared, Duration copied,
                   Duration verified) {
    Exchanged done{.mode = options_.mode,
                   .pieces = pieces_,
                   .received = counts.received,
                   .sent = counts.sent,
                   .copied = counts.copied,
                   .peak = memory_.most(),
                   .moved = task_.plan->figures.moved,
                   .bound = task_.plan->figures.moved_bound,
                   .prepared = prepared,
                   .copied_for = copied,
                   .verified = verified};
    std::vector<bool> kept(old_.size());
    for (const NewPiece& piece : fresh()) {
      if (piece.kept == kNothing) continue;
      kept[piece.kept] = true;
      done.kept += piece.piece.bytes();
    }
    for (size_t i = 0; i < old_.size(); ++i) {
      if (!kept[i] && !released_[i]) storage_.release(old_[i]);
    }
    return done;
  }

  std::span<const NewPiece> fresh() const {
    return moves_ == nullptr ? std::span<const NewPiece>() : moves_->fresh;
  }

  Env& env_;
  Transport& transport_;
  const ExchangeTask& task_;
  PieceStorage& storage_;
  const ExchangeOptions& options_;
  LocalPieces old_;
  PhaseTimes times_;
  ExchangeAgreement meeting_;
  SharedPlan shared_;
  std::unique_ptr<StateSeals> before_, after_;
  std::unique_ptr<OwnMoves> moves_;
  MemoryCount memory_;
  std::vector<bool> released_;
  LocalPieces pieces_;
};

}  // namespace

std::string_view name_of(ExchangeMode mode) {
  return mode == ExchangeMode::kShadow ? "shadow" : "windowed";
}

Result<Exchanged> exchange(Env& env, Transport& transport, const ExchangeTask& task,
                           PieceStorage& storage, const ExchangeOptions& options) {
  return Exchange(env, transport, task, storage, options).run().within("exchange");
}

}  // namespace holdfast
