#include "holdfast/exchange/own_moves.h"

#include <algorithm>

namespace holdfast {
namespace {

constexpr int64_t kLotBytes = int64_t{16} << 20;

// True if this rank is the holder. The holder is found by its name, because the plan
// numbers holders in another order than the target.
bool is_own(const SharedPlan& shared, const Holder& holder, int rank) {
  for (size_t h = 0; h < shared.plan->holders.size(); ++h) {
    if (shared.plan->holders[h].name == holder.name) return shared.rank_of[h] == rank;
  }
  return false;
}

std::vector<HolderId> own_holders(const SharedPlan& shared, const Layout& layout,
                                  int rank) {
  std::vector<HolderId> own;
  for (HolderId h = 0; h < layout.holders().size(); ++h) {
    if (is_own(shared, layout.holders()[h], rank)) own.push_back(h);
  }
  return own;
}

}  // namespace

std::vector<uint32_t> lots_of(const Collection& target) {
  std::vector<uint32_t> lots;
  uint32_t lot = 0;
  int64_t bytes = 0;
  for (const Tensor& tensor : target.tensors()) {
    if (bytes > 0 && bytes + tensor.bytes() > kLotBytes) {
      ++lot;
      bytes = 0;
    }
    bytes += tensor.bytes();
    lots.push_back(lot);
  }
  return lots;
}

OwnMoves::OwnMoves(const SharedPlan& shared, int rank, const LocalPieces& old,
                   const PieceStorage& storage)
    : lot_of_(lots_of(*shared.target)) {
  lots = lot_of_.empty() ? 0 : lot_of_.back() + 1;
  list_old(shared, old);
  list_fresh(shared, own_holders(shared, shared.target->layout(), rank), old,
             storage);
  const std::vector<Move>& moves = shared.plan->moves;
  // A box that is passed on gets its number where it is received, which is earlier.
  for (const Move& move : moves) {
    if (move.after == kNoMove || shared.rank_of[move.from_holder] != rank) continue;
    if (arrival_of_.emplace(move.after, arrivals).second) ++arrivals;
  }
  for (uint32_t m = 0; m < moves.size(); ++m) add_move(shared, m, rank, old);
}

void OwnMoves::list_old(const SharedPlan& shared, const LocalPieces& old) {
  readers.assign(old.size(), 0);
  last_lot.assign(old.size(), 0);
  for (uint32_t i = 0; i < old.size(); ++i) {
    old_[{old[i].tensor->name, old[i].box}] = i;
    old_of_[old[i].tensor->name].push_back(i);
  }
  for (TensorId t = 0; t < shared.target->tensors().size(); ++t) {
    const auto from = shared.source->find(shared.target->tensor(t).name);
    source_names_.emplace_back();
    if (from.has_value()) source_names_.back() = shared.source->tensor(*from).name;
    const auto pieces = old_of_.find(source_names_.back());
    if (pieces == old_of_.end()) continue;
    for (const uint32_t i : pieces->second) last_lot[i] = lot_of_[t];
  }
}

void OwnMoves::list_fresh(const SharedPlan& shared, const std::vector<HolderId>& own,
                          const LocalPieces& old, const PieceStorage& storage) {
  const Layout& layout = shared.target->layout();
  for (TensorId t = 0; t < layout.tensor_count() && !own.empty(); ++t) {
    const Tensor& tensor = shared.target->tensor(t);
    std::shared_ptr<const Tensor> shared_tensor;
    for (const Slice& slice : layout.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        if (std::ranges::count(own, layout.holder(p)) == 0) continue;
        if (shared_tensor == nullptr) {
          shared_tensor = std::make_shared<const Tensor>(tensor);
        }
        const auto number = static_cast<uint32_t>(fresh.size());
        NewPiece piece{
            .piece = {.tensor = shared_tensor, .box = slice.box, .memory{}, .map{}},
            .lot = lot_of_[t]};
        const auto same = old_.find({source_names_[t], slice.box});
        if (same != old_.end() && *old[same->second].tensor == tensor &&
            storage.keeps(old[same->second])) {
          piece.kept = same->second;
          piece.piece = old[same->second];
        }
        fresh_[{tensor.name, slice.box}] = number;
        fresh.push_back(std::move(piece));
        if (fresh.back().kept == kNothing) add_copies(number, source_names_[t], old);
      }
    }
  }
  places_.resize(fresh.size());
}

// Boxes of one tensor on one rank do not overlap, so every element comes from one piece.
void OwnMoves::add_copies(uint32_t number, std::string_view source_name,
                          const LocalPieces& old) {
  const auto pieces = old_of_.find(source_name);
  if (pieces == old_of_.end()) return;
  for (const uint32_t i : pieces->second) {
    const auto common = intersect(old[i].box, fresh[number].piece.box);
    if (common.has_value() && !common->empty()) {
      copies.push_back({.from = i, .to = number, .box = *common});
    }
  }
}

void OwnMoves::add_move(const SharedPlan& shared, uint32_t number, int rank,
                        const LocalPieces& old) {
  const Move& move = shared.plan->moves[number];
  const int from = shared.rank_of[move.from_holder];
  const int to = shared.rank_of[move.to_holder];
  if (from == to || (from != rank && to != rank)) return;
  const Box& box = shared.plan->boxes[move.box];
  const std::string& name = shared.target->tensor(move.tensor).name;
  const Layout& target = shared.target->layout();
  PairStream::Part about{.piece = {}, .lot = lot_of_[move.tensor]};
  about.passed_on = move.after != kNoMove;
  if (to == rank) {
    about.held = fresh_.at({name, target.box(move.to)});
    const auto passed_on = arrival_of_.find(number);
    if (passed_on != arrival_of_.end()) about.arrival = passed_on->second;
    add_part(receives[from], fresh[about.held].piece, about, box, true);
  } else if (move.after != kNoMove) {
    about.held = fresh_.at({name, target.box(move.from)});
    about.arrival = arrival_of_.at(move.after);
    add_part(sends[to], fresh[about.held].piece, about, box, true);
  } else {
    about.held = old_.at(
        {source_names_[move.tensor], shared.source->layout().box(move.from)});
    if (box.elements() > 0) ++readers[about.held];
    add_part(sends[to], old[about.held], about, box, false);
  }
}

void OwnMoves::add_part(PairStream& stream, const LocalPiece& piece,
                        const PairStream::Part& about, const Box& box, bool is_fresh) {
  const size_t before = stream.parts().size();
  stream.add(piece, about, box);
  if (is_fresh && stream.parts().size() > before) {
    places_[about.held].push_back({.stream = &stream, .part = before});
  }
}

void OwnMoves::place(uint32_t number, const LocalPiece& made) {
  fresh[number].piece = made;
  for (const Place& place : places_[number]) place.stream->place(place.part, made);
}

}  // namespace holdfast
