#include "holdfast/checkpoint/layout_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "holdfast/base/result.h"
#include "holdfast/device/device.h"
#include "holdfast/memory/piece_description.h"
#include "holdfast/state/box_stream.h"
#include "holdfast/state/seal.h"
#include "holdfast/transport/agreement.h"
#include "holdfast/transport/worker.h"

namespace holdfast {
namespace {

constexpr size_t kDigest = 32;  // the digits of a description's digest

Result<void> check_tiled(const Collection& all) {
  for (TensorId t = 0; t < all.tensors().size(); ++t) {
    const Tensor& tensor = all.tensor(t);
    if (const std::optional<Box> hole = all.uncovered(t)) {
      return invalid("{} {}: no rank has the box {}; expected each element once",
                     tensor.name, to_string(tensor.shape), to_string(*hole));
    }
    int64_t elements = 0;
    for (const Slice& slice : all.layout().slices(t)) elements += slice.box.elements();
    if (elements == tensor.shape.elements()) continue;
    return invalid("{} {}: boxes of the ranks overlap; expected each element once",
                   tensor.name, to_string(tensor.shape));
  }
  return {};
}

// Calls visit(tensor, slice) for every box that several ranks have.
void for_each_replica(const Collection& all, const auto& visit) {
  for (TensorId t = 0; t < all.tensors().size(); ++t) {
    for (const Slice& slice : all.layout().slices(t)) {
      if (slice.last - slice.first > 1) visit(t, slice);
    }
  }
}

// Returns the seals of the rank's replicas, in the order of for_each_replica. The seal
// of a replica that could not be read is zeros.
Bytes seal_replicas(const LocalState& state, CudaStream stream) {
  const Result<void> behind = follow_stream(devices_of(state.pieces), stream);
  std::map<std::pair<std::string_view, Box>, const LocalPiece*> pieces;
  for (const LocalPiece& piece : state.pieces) {
    pieces[{piece.tensor->name, piece.box}] = &piece;
  }
  Bytes seals;
  for_each_replica(*state.collection, [&](TensorId t, const Slice& slice) {
    const auto found = pieces.find({state.collection->tensor(t).name, slice.box});
    if (found == pieces.end()) return;
    const Result<Seal> read =
        behind.ok() ? seal_of(*found->second) : Result<Seal>(behind.error());
    const Seal seal = read.ok() ? *read : Seal();
    const size_t at = seals.size();
    seals.resize(at + 2 * sizeof(uint64_t));
    store_little_endian(seal.lanes[0], ByteSpan(seals).subspan(at));
    store_little_endian(seal.lanes[1], ByteSpan(seals).subspan(at + sizeof(uint64_t)));
  });
  return seals;
}

}  // namespace

LayoutAgreement::LayoutAgreement(Env& env, Transport* transport, Duration at_most)
    : env_(env), transport_(transport), at_most_(at_most) {}

Result<std::vector<Bytes>> LayoutAgreement::all(ByteView own, Duration longer) {
  if (transport_ == nullptr) return std::vector<Bytes>{copy_of(own)};
  return transport_->all_gather(own, env_.now() + at_most_ + longer);
}

// Sends this rank's digest to all ranks and returns the digests of all. Rank 0 appends
// its word to its digest, and on return `word` holds it on every rank.
Result<std::vector<Bytes>> LayoutAgreement::exchange_digests(std::string_view own,
                                                             Bytes& word,
                                                             Duration longer) {
  Bytes said = copy_of(bytes_of(own));
  said.resize(kDigest);  // a rank that has failed has no digest and sends zeros
  if (rank() == 0) said.insert(said.end(), word.begin(), word.end());
  std::vector<Bytes> digests =
      HOLDFAST_TRY(all(said, rank() == 0 ? Duration{} : longer));
  for (size_t r = 0; r < digests.size(); ++r) {
    if (digests[r].size() < kDigest) {
      return corrupt("rank {}: sent a digest of {} bytes; expected a whole one", r,
                     digests[r].size());
    }
  }
  word.assign(digests[0].begin() + kDigest, digests[0].end());
  for (Bytes& digest : digests) digest.resize(kDigest);
  return digests;
}

// Makes the description of the pieces. Keeps the last one if the pieces are the same,
// because making it takes milliseconds, for which training would wait at every save.
Result<void> LayoutAgreement::describe(const LocalPieces& pieces) {
  const LocalPieces before = std::exchange(described_, pieces);
  if (!text_.empty() && pieces == before) return {};
  placed_.reset();
  if (!text_.empty() &&
      std::ranges::equal(pieces, before, [](const auto& a, const auto& b) {
        return a.is_same_box(b);
      })) {
    return {};  // only the addresses in memory have changed
  }
  text_.clear();
  const Worker worker = this_worker(env_);
  if (transport_ == nullptr) {  // no other rank reads the description
    own_ = HOLDFAST_TRY(collection_of_pieces(pieces, worker.name));
    text_ = Bytes(1);
    digest_ = fmt::format("{:032}", ++descriptions_);
    return {};
  }
  // Replicas have equal descriptions, so the worker is not named in them.
  own_ = HOLDFAST_TRY(collection_of_pieces(pieces));
  text_ = introduce({worker.name, worker.host}, description_of(*own_));
  digest_ = xxh3_128(text_).hex();
  return {};
}

Result<LocalState> LayoutAgreement::agree(const Result<LocalPieces>& pieces,
                                          bool compare, CudaStream stream) {
  Bytes nothing;
  return agree(pieces, compare, nothing, {}, stream);
}

// A rank that has failed sends an empty digest, which differs from the last one, so that
// all ranks exchange their descriptions. Instead of its description it then sends its
// error.
Result<LocalState> LayoutAgreement::agree(const Result<LocalPieces>& pieces,
                                          bool compare, Bytes& word, Duration longer,
                                          CudaStream stream) {
  const Result<void> own =
      pieces.ok() ? describe(*pieces) : Result<void>(pieces.error());
  if (!own.ok()) {
    text_.clear();
    seen_.clear();
  }
  const auto digests = exchange_digests(own.ok() ? digest_ : "", word, longer);
  if (!digests.ok()) return own.ok() ? digests.error() : own.error();
  if (*digests != seen_ || collection_ == nullptr) {
    seen_.clear();
    placed_.reset();
    const auto texts = holdfast::agree({.env = &env_, .transport = transport_},
                                       own.ok() ? Result<Bytes>(text_) : own.error(),
                                       at_most_);
    if (!own.ok()) return own.error();
    if (!texts.ok()) return texts.error();
    collection_ = HOLDFAST_TRY(merge(*texts));
    if (compare) HOLDFAST_TRY(compare_replicas(state_of(*pieces), stream));
    seen_ = *digests;
  }
  if (!placed_.has_value()) placed_ = state_of(*pieces);
  return *placed_;
}

Result<std::shared_ptr<const Collection>> LayoutAgreement::merge(
    const std::vector<Bytes>& texts) {
  if (transport_ == nullptr) {
    HOLDFAST_TRY(check_tiled(*own_));
    return own_;
  }
  std::vector<std::string_view> said;
  std::vector<RankIdentity> ranks;
  for (size_t r = 0; r < texts.size(); ++r) {
    Introduced one =
        HOLDFAST_TRY(parse_introduced(static_cast<int>(r), text_of(texts[r])));
    said.push_back(one.description);
    ranks.push_back(std::move(one.who));
  }
  const std::vector<SharedCollection> read = HOLDFAST_TRY(
      parse_descriptions(said, said[static_cast<size_t>(rank())], own_));
  PiecesOfRanks all(holders_of(ranks).holders);
  for (size_t r = 0; r < read.size(); ++r) {
    HOLDFAST_TRY(all.add_all(static_cast<int>(r), *read[r]));
  }
  auto merged = std::make_shared<const Collection>(HOLDFAST_TRY(all.build()));
  HOLDFAST_TRY(check_tiled(*merged));
  return SharedCollection(std::move(merged));
}

// The state of this rank in the collection, without pieces that are empty.
LocalState LayoutAgreement::state_of(const LocalPieces& pieces) const {
  LocalState state{.collection = collection_, .rank = rank(), .pieces = pieces};
  if (std::ranges::any_of(pieces, is_nothing)) {
    std::erase_if(state.pieces.edit(), is_nothing);
  }
  return state;
}

Result<void> LayoutAgreement::compare_replicas(const LocalState& state,
                                               CudaStream stream) {
  const std::vector<Differing> differ = HOLDFAST_TRY(differing(state, stream));
  if (differ.empty()) return {};
  return invalid(
      "{}: rank {} and rank {} hold it with different values; expected equal replicas, "
      "or a spec that says how the tensor is cut",
      differ[0].tensor, differ[0].rank, differ[0].other);
}

Result<std::vector<Differing>> LayoutAgreement::differing(const LocalState& state,
                                                          CudaStream stream) {
  const std::vector<Bytes> seals = HOLDFAST_TRY(all(seal_replicas(state, stream)));
  std::vector<size_t> at(seals.size());  // how many bytes of each rank's seals are read
  std::map<TensorId, Differing> found;
  const Layout& layout = state.collection->layout();
  for_each_replica(*state.collection, [&](TensorId t, const Slice& slice) {
    ByteView known;
    for (PieceId p = slice.first; p < slice.last; ++p) {
      const size_t r = layout.holder(p);
      constexpr size_t kBytes = 2 * sizeof(uint64_t);
      if (seals[r].size() < at[r] + kBytes) return;  // sent by another version
      const ByteView own = ByteView(seals[r]).subspan(at[r], kBytes);
      at[r] += kBytes;
      if (known.empty()) known = own;
      if (std::ranges::equal(known, own)) continue;
      found.try_emplace(t,
                        Differing{.tensor = state.collection->tensor(t).name,
                                  .rank = static_cast<int>(layout.holder(slice.first)),
                                  .other = static_cast<int>(r),
                                  .whole = layout.slices(t).size() == 1,
                                  .first = is_first(layout, t)});
    }
  });
  std::vector<Differing> differ;
  for (auto& [tensor, one] : found) differ.push_back(std::move(one));
  return differ;
}

// True if this rank holds a box of the tensor that no lower rank holds.
bool LayoutAgreement::is_first(const Layout& layout, TensorId tensor) const {
  return std::ranges::any_of(layout.slices(tensor), [&](const Slice& slice) {
    HolderId first = layout.holder(slice.first);
    for (PieceId p = slice.first; p < slice.last; ++p) {
      first = std::min(first, layout.holder(p));
    }
    return first == static_cast<HolderId>(rank());
  });
}

}  // namespace holdfast
