// What the ranks of a job tell each other about their pieces: which boxes of which
// tensors each rank holds. Where the boxes lie in a rank's memory is not said, because
// other ranks do not need to know.
//
// A rank sends a description, which is a text. A rank that has failed sends its error
// instead, so that all ranks fail alike. All functions are pure.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holdfast/memory/local_state.h"
#include "holdfast/state/collection.h"

namespace holdfast {

using SharedCollection = std::shared_ptr<const Collection>;

// Who a rank is, apart from its number, which may change (transport/worker.h).
struct RankIdentity {
  std::string name{};  // the name of its process
  std::string host{};  // equal for ranks of one host
};

// The holders that the ranks are, each on its host. Several ranks may be in one process, as
// in tests; each is a holder of its own.
struct LiveHolders {
  std::vector<Holder> holders;  // by rank
  Topology topology;
};
LiveHolders holders_of(std::span<const RankIdentity> ranks);

// True for an empty part of a tensor that is not empty. A small tensor that is cut for
// many ranks leaves some ranks such a part, which counts as no piece.
bool is_nothing(const LocalPiece& piece);
LocalPieces without_nothing(LocalPieces pieces);

// A collection of one rank's pieces, without those that are nothing. `holder` is the name
// of its only holder.
Result<SharedCollection> collection_of_pieces(std::span<const LocalPiece> pieces,
                                              std::string holder = "this rank");

// The text for other ranks.
Bytes description_of(const Collection& collection);

// A description with who sends it before it.
Bytes introduce(const RankIdentity& who, ByteView description);
struct Introduced {
  RankIdentity who{};
  std::string_view description{};  // in the text that was read
};
Result<Introduced> parse_introduced(int rank, std::string_view text);

// Reads the descriptions of all ranks, by rank. Ranks that hold replicas send equal
// texts, and each different text is read once; `own`, the text of this rank, is not
// read at all.
Result<std::vector<SharedCollection>> parse_descriptions(
    std::span<const std::string_view> texts, std::string_view own,
    const SharedCollection& own_pieces);

// Whether a rank has a piece, or is to have it after a change of the layout.
enum class When { kBefore, kAfter };

// Collects the tensors of several ranks, each once, and which rank has which box. In the
// layouts, tensor i starts at the same byte on every rank: at the sum of the full sizes
// of the tensors before it, each rounded up to 64, as in those that build_collection()
// makes. So a box that a rank has before and after a change is found in place.
class PiecesOfRanks {
 public:
  explicit PiecesOfRanks(std::vector<Holder> ranks) : holders_(std::move(ranks)) {}

  // Fails with kInvalid, naming both ranks, if another rank has a different tensor of
  // the same name.
  Result<void> add(int rank, const Tensor& tensor, const Box& box,
                   When when = When::kBefore);
  Result<void> add_all(int rank, const Collection& own, When when = When::kBefore);

  // The collection of all ranks, with the tensors of both times and the boxes of one.
  // Does not check that the boxes cover the tensors.
  Result<Collection> build(When when = When::kBefore) const;

 private:
  struct Piece {
    TensorId tensor;
    Box box;
    HolderId holder;
    When when;
  };

  // The first byte of each tensor.
  Result<std::vector<int64_t>> base_addresses() const;
  static Error differ(const Tensor& a, int rank_a, const Tensor& b, int rank_b);

  std::vector<Tensor> tensors_;
  std::vector<int> first_;  // the rank that first named the tensor
  std::unordered_map<std::string, TensorId> ids_;
  std::vector<Holder> holders_;
  std::vector<Piece> pieces_;
};

}  // namespace holdfast
