#include "holdfast/exchange/fill.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "holdfast/device/device.h"
#include "holdfast/exchange/carrier.h"
#include "holdfast/exchange/meeting.h"
#include "holdfast/exchange/pair_stream.h"
#include "holdfast/plan/plan.h"

namespace holdfast {
namespace {

constexpr size_t kSealBytes = 2 * sizeof(uint64_t);

// The two collections have the same tensors and the same holders: holder r is rank r.
struct FillPlan {
  Collection source;
  Collection target;
  Plan plan;
};

// Ranks of one machine are on one host.
Topology place_on_hosts(const std::vector<Peer>& peers, std::vector<Holder>& ranks) {
  std::map<std::string, HostId> hosts;
  for (size_t r = 0; r < peers.size(); ++r) {
    const std::string& machine = peers[r].machine;
    const std::string name = machine.empty() ? ranks[r].name : machine;
    ranks[r].host =
        hosts.emplace(name, static_cast<HostId>(hosts.size())).first->second;
  }
  return Topology::uniform(static_cast<uint32_t>(hosts.size()));
}

// The same on all ranks, also its errors.
Result<FillPlan> plan_fill(const std::vector<Peer>& peers) {
  std::vector<Holder> ranks = holders_of_ranks(static_cast<int>(peers.size()));
  const Topology topology = place_on_hosts(peers, ranks);
  PiecesOfRanks all(std::move(ranks));
  std::vector<bool> whole, to_fill;
  for (size_t r = 0; r < peers.size(); ++r) {
    HOLDFAST_TRY(all.add_all(static_cast<int>(r), *peers[r].pieces));
    whole.push_back(peers[r].is_whole);
    to_fill.push_back(!peers[r].is_whole);
  }
  Collection source = HOLDFAST_TRY(all.build_for(whole));
  Collection target = HOLDFAST_TRY(all.build_for(to_fill));
  // No rank passes on what it received, so no move waits for another.
  Plan moves =
      HOLDFAST_TRY(plan(source, target, topology, PlanOptions{.forwarding = false}));
  return FillPlan{std::move(source), std::move(target), std::move(moves)};
}

using Streams = std::map<int, PairStream>;  // by the other rank

// The part of the plan that is about this rank.
class OwnMoves {
 public:
  OwnMoves(const FillPlan& fill, const LocalPieces& pieces, int rank) {
    for (const LocalPiece& piece : pieces) {
      pieces_[{piece.tensor->name, piece.box}] = &piece;
    }
    const auto own = static_cast<HolderId>(rank);
    for (const Move& move : fill.plan.moves) {
      if (move.from_holder == own) {
        add(fill, move, fill.source.layout().box(move.from), move.to_holder, sends);
      } else if (move.to_holder == own) {
        add(fill, move, fill.target.layout().box(move.to), move.from_holder, receives);
      }
    }
  }

  Streams sends;
  Streams receives;

 private:
  void add(const FillPlan& fill, const Move& move, const Box& held, HolderId other,
           Streams& streams) {
    const auto piece = pieces_.find({fill.target.tensor(move.tensor).name, held});
    HOLDFAST_CHECK(piece != pieces_.end(), "a move of a box that this rank lacks");
    streams[static_cast<int>(other)].add(*piece->second, fill.plan.boxes[move.box]);
  }

  std::map<std::pair<std::string_view, Box>, const LocalPiece*> pieces_;
};

Bytes encode_seals(const std::vector<Seal>& seals) {
  Bytes said(seals.size() * kSealBytes);
  ByteSpan rest = said;
  for (const Seal& seal : seals) {
    store_little_endian(seal.lanes[0], rest);
    store_little_endian(seal.lanes[1], rest.subspan(sizeof(uint64_t)));
    rest = rest.subspan(kSealBytes);
  }
  return said;
}

// Sends all windows of the stream, and returns the seals of its boxes.
Result<std::vector<Seal>> send_windows(Outlet& outlet, const PairStream& stream) {
  std::vector<Seal> seals(stream.parts().size());
  for (int64_t at = 0; at < stream.bytes(); at += outlet.window_bytes()) {
    const int64_t size = std::min(outlet.window_bytes(), stream.bytes() - at);
    ByteView window;
    if (const auto view = stream.view(at, size); view && outlet.takes_views()) {
      window = *view;
    } else {
      const ByteSpan room = HOLDFAST_TRY(outlet.room(static_cast<size_t>(size)));
      if (const Result<void> read = stream.read(at, room); !read.ok()) {
        outlet.give_up();
        return read.error();
      }
      window = room;
    }
    stream.add_seals(at, window, seals);
    HOLDFAST_TRY(outlet.send(window));
  }
  return seals;
}

// Both sides add the bytes that went through shared memory to `shared`.
using SharedBytes = std::atomic<int64_t>;

Result<void> send_stream(const PairLink& link, const PairStream& stream,
                         const Result<void>& ready, SharedBytes& shared) {
  const std::unique_ptr<Outlet> outlet = HOLDFAST_TRY(open_outlet(link));
  if (outlet->shares_memory()) shared += stream.bytes();
  if (!ready.ok()) {
    outlet->give_up();
    return ready;
  }
  const std::vector<Seal> seals = HOLDFAST_TRY(send_windows(*outlet, stream));
  return link.transport->send(link.peer, link.tag, encode_seals(seals), link.deadline);
}

// Receives the stream of one sender and puts it into place.
class StreamReceiver {
 public:
  StreamReceiver(const PairLink& link, const PairStream& stream, PieceWriter& writer)
      : link_(link), stream_(stream), writer_(writer), own_(stream.parts().size()) {}

  // After a failure of this rank it goes on to receive, so that the sender, which must
  // not fail for another reason than this rank, is not left waiting.
  Result<void> run(Result<void> outcome, SharedBytes& shared) {
    const std::unique_ptr<Inlet> inlet = HOLDFAST_TRY(open_inlet(link_));
    if (inlet->shares_memory()) shared += stream_.bytes();
    for (int64_t at = 0; at < stream_.bytes(); at += inlet->window_bytes()) {
      const int64_t size = std::min(inlet->window_bytes(), stream_.bytes() - at);
      const ByteSpan place = stream_.view(at, size).value_or(ByteSpan());
      const ByteView window =
          HOLDFAST_TRY(inlet->receive(static_cast<size_t>(size), place));
      if (outcome.ok() && window.data() != place.data()) {
        outcome = stream_.write(at, window, writer_);
      }
      if (outcome.ok()) outcome = seal_until(at + size);
    }
    sent_ = HOLDFAST_TRY(link_.transport->recv(link_.peer, link_.tag, link_.deadline));
    return outcome;
  }

  // Compares the seals. Called when the writer has finished.
  Result<void> check() {
    HOLDFAST_TRY(seal_rest());
    const Bytes expected = encode_seals(own_);
    if (sent_.size() != expected.size()) {
      return corrupt("rank {}: sent {} bytes of seals; expected {}", link_.peer,
                     sent_.size(), expected.size());
    }
    for (size_t p = 0; p < own_.size(); ++p) {
      const auto seal = [&](const Bytes& of) {
        return ByteView(of).subspan(p * kSealBytes, kSealBytes);
      };
      if (!std::ranges::equal(seal(sent_), seal(expected))) return differs(p);
    }
    return {};
  }

 private:
  // Seals the boxes in the host's memory that are complete up to this byte, while their
  // last bytes are in the processor's cache.
  Result<void> seal_until(int64_t end) {
    for (; sealed_ < own_.size() && stream_.parts()[sealed_].end() <= end; ++sealed_) {
      const LocalPiece& piece = stream_.parts()[sealed_].piece;
      if (piece.device == nullptr) own_[sealed_] = HOLDFAST_TRY(seal_of(piece));
    }
    return {};
  }
  Result<void> seal_rest() {
    for (size_t p = 0; p < own_.size(); ++p) {
      const LocalPiece& piece = stream_.parts()[p].piece;
      if (piece.device != nullptr) own_[p] = HOLDFAST_TRY(seal_of(piece));
    }
    return {};
  }
  Error differs(size_t p) const {
    const LocalPiece& piece = stream_.parts()[p].piece;
    return corrupt(
        "{}: the seal of box {} at rank {} is not the one that rank {} sent; expected "
        "equal ones",
        piece.tensor->name, to_string(piece.box), link_.transport->rank(), link_.peer);
  }

  const PairLink link_;
  const PairStream& stream_;
  PieceWriter& writer_;
  std::vector<Seal> own_;  // of this rank's memory, by part
  size_t sealed_ = 0;      // the first so many parts are in own_, if on the host
  Bytes sent_;             // the seals that the sender sent
};

// Keeps the first failure of several threads' outcomes.
Result<void> first_failure(const std::vector<Result<void>>& outcomes) {
  for (const Result<void>& outcome : outcomes) {
    if (!outcome.ok()) return outcome;
  }
  return {};
}

// Carries out this rank's moves, each pair in a thread of its own, so that a pair that
// waits holds up no other.
Result<void> carry_out(const std::function<PairLink(int)>& link_to,
                       const OwnMoves& moves, const LocalPieces& pieces,
                       CudaStream stream, SharedBytes& shared) {
  const Result<void> ready = follow_stream(devices_of(pieces), stream);
  PieceWriter writer(moves.receives.empty() ? std::span<const LocalPiece>() : pieces);
  std::vector<StreamReceiver> receivers;
  for (const auto& [from, part] : moves.receives) {
    receivers.emplace_back(link_to(from), part, writer);
  }
  std::vector<Result<void>> outcomes(moves.sends.size() + receivers.size());
  {
    std::vector<std::jthread> threads;
    auto outcome = outcomes.begin();
    for (const auto& [to, part] : moves.sends) {
      threads.emplace_back(
          [link = link_to(to), &part, &ready, &shared, &into = *outcome++] {
            into = send_stream(link, part, ready, shared);
          });
    }
    for (StreamReceiver& receiver : receivers) {
      threads.emplace_back([&receiver, &ready, &shared, &into = *outcome++] {
        into = receiver.run(ready, shared);
      });
    }
  }
  outcomes.push_back(writer.finish());
  HOLDFAST_TRY(first_failure(outcomes));
  for (StreamReceiver& receiver : receivers) HOLDFAST_TRY(receiver.check());
  return {};
}

}  // namespace

Result<Filled> fill_from_peers(Env& env, Transport& transport,
                               const LocalPieces& pieces, const FillOptions& options) {
  const Meeting meeting =
      HOLDFAST_TRY(meet(env, transport, pieces, options).within("fill"));
  const FillPlan fill = HOLDFAST_TRY(plan_fill(meeting.peers).within("fill"));
  const OwnMoves moves(fill, pieces, transport.rank());
  const std::string& machine =
      meeting.peers[static_cast<size_t>(transport.rank())].machine;
  const auto link_to = [&](int peer) {
    const bool one_machine =
        !machine.empty() && meeting.peers[static_cast<size_t>(peer)].machine == machine;
    return PairLink{.env = &env,
                    .transport = &transport,
                    .peer = peer,
                    .tag = meeting.tag,
                    .deadline = meeting.moved_by,
                    .one_machine = one_machine};
  };
  SharedBytes shared = 0;
  const Result<void> own = carry_out(link_to, moves, pieces, options.stream, shared);
  HOLDFAST_TRY(settle(transport, own, meeting.settled_by).within("fill"));
  const HolderLoad& load = fill.plan.loads[static_cast<size_t>(transport.rank())];
  return Filled{.received = load.received,
                .sent = load.sent,
                .moved = fill.plan.figures.moved,
                .shared = shared};
}

}  // namespace holdfast
