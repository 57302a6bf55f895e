#include "holdfast/exchange/state_seals.h"

#include <map>
#include <string_view>
#include <utility>

#include "holdfast/state/box_index.h"

namespace holdfast {
namespace {

constexpr size_t kSealBytes = 2 * sizeof(uint64_t);

// True if the slices are disjoint and have every element.
bool is_tiled(const Collection& state, TensorId tensor) {
  int64_t elements = 0;
  for (const Slice& slice : state.layout().slices(tensor)) {
    elements += slice.box.elements();
  }
  return elements == state.tensor(tensor).shape.elements() &&
         !state.uncovered(tensor).has_value();
}

}  // namespace

StateSeals::StateSeals(const Collection& state, const Collection& target,
                       std::vector<int> rank_of)
    : state_(state), rank_of_(std::move(rank_of)) {
  for (TensorId t = 0; t < target.tensors().size(); ++t) {
    const auto found = state.find(target.tensor(t).name);
    HOLDFAST_CHECK(found.has_value(), "{}: not in the source", target.tensor(t).name);
    SealedTensor sealed{.tensor = *found};
    sealed.tiled = is_tiled(state, *found) && is_tiled(target, t);
    if (!sealed.tiled) {
      sealed.shares = share_out(state.layout(), *found, target.layout().boxes(t));
    }
    tensors_.push_back(std::move(sealed));
  }
}

// Cuts the region and the layout's boxes into disjoint cells, and gives what each two
// have in common to the first piece that has it. A plan between the two has cells that
// are finer, so that there are not too many here.
std::vector<StateSeals::Share> StateSeals::share_out(const Layout& layout,
                                                     TensorId tensor,
                                                     const std::vector<Box>& region) {
  const std::vector<Cell> held = refine(layout.boxes(tensor)).value();
  std::vector<Share> shares;
  for (const Cell& wanted : refine(region).value()) {
    for (const Cell& cell : held) {
      const auto common = intersect(wanted.box, cell.box);
      if (!common.has_value() || common->empty()) continue;
      shares.push_back(
          {.box = *common, .piece = layout.slices(tensor)[cell.owners.front()].first});
    }
  }
  return shares;
}

// Calls visit(box, piece, slice or null) for each box that is sealed, in one order on all
// ranks. A box of a slice is sealed by all its holders.
template <typename Visit>
void StateSeals::for_each_box(const SealedTensor& sealed, const Visit& visit) const {
  for (const Slice& slice : state_.layout().slices(sealed.tensor)) {
    for (PieceId p = slice.first; p < slice.last; ++p) visit(slice.box, p, &slice);
  }
  for (const Share& share : sealed.shares) {
    visit(share.box, share.piece, static_cast<const Slice*>(nullptr));
  }
}

Result<Bytes> StateSeals::seal_own(int rank, const LocalPieces& pieces) const {
  std::map<std::pair<std::string_view, Box>, const LocalPiece*> found;
  for (const LocalPiece& piece : pieces) {
    found[{piece.tensor->name, piece.box}] = &piece;
  }
  std::vector<LocalPiece> parts;
  for (const SealedTensor& sealed : tensors_) {
    const std::string& name = state_.tensor(sealed.tensor).name;
    for_each_box(sealed, [&](const Box& box, PieceId p, const Slice*) {
      if (rank_of(p) != rank) return;
      const auto held = found.find({name, state_.layout().box(p)});
      HOLDFAST_CHECK(held != found.end(), "{}: a box that this rank lacks", name);
      LocalPiece& part = parts.emplace_back(*held->second);
      part.map = part.map.narrowed(part.box, box);
      part.box = box;
    });
  }
  const std::vector<Seal> seals = HOLDFAST_TRY(seals_of(parts));
  Bytes said(seals.size() * kSealBytes);
  for (size_t i = 0; i < seals.size(); ++i) {
    const ByteSpan into = ByteSpan(said).subspan(i * kSealBytes, kSealBytes);
    store_little_endian(seals[i].lanes[0], into);
    store_little_endian(seals[i].lanes[1], into.subspan(sizeof(uint64_t)));
  }
  return said;
}

Result<std::vector<Seal>> StateSeals::merge(const std::vector<Bytes>& said) const {
  std::vector<size_t> at(said.size());  // how many bytes of each rank are read
  std::vector<Seal> seals;
  Result<void> outcome;
  for (const SealedTensor& sealed : tensors_) {
    Seal sum, first;
    for_each_box(sealed, [&](const Box& box, PieceId p, const Slice* slice) {
      const auto r = static_cast<size_t>(rank_of(p));
      if (!outcome.ok()) return;
      if (said[r].size() < at[r] + kSealBytes) {
        outcome = corrupt("rank {}: sent {} bytes of seals; expected more", r,
                          said[r].size());
        return;
      }
      const ByteView bytes = ByteView(said[r]).subspan(at[r], kSealBytes);
      at[r] += kSealBytes;
      const Seal seal{
          .lanes = {load_little_endian<uint64_t>(bytes),
                    load_little_endian<uint64_t>(bytes.subspan(sizeof(uint64_t)))}};
      if (slice != nullptr && p == slice->first) first = seal;
      if (slice != nullptr && seal != first) {
        const auto holders = state_.layout().holders();
        outcome = corrupt(
            "{}: {} and {} hold box {} with different values; expected equal replicas",
            state_.tensor(sealed.tensor).name,
            holders[state_.layout().holder(slice->first)].name,
            holders[state_.layout().holder(p)].name, to_string(box));
      }
      const bool counts = sealed.tiled ? p == slice->first : slice == nullptr;
      if (counts) sum += seal;
    });
    seals.push_back(sum);
  }
  HOLDFAST_TRY(outcome);
  return seals;
}

Result<void> compare_seals(const Collection& target, const std::vector<Seal>& before,
                           const std::vector<Seal>& after) {
  for (TensorId t = 0; t < target.tensors().size(); ++t) {
    if (before[t] == after[t]) continue;
    return corrupt(
        "{}: its seal after the exchange is not the one before; expected equal ones",
        target.tensor(t).name);
  }
  return {};
}

}  // namespace holdfast
