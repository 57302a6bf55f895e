#include "holdfast/memory/piece_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "holdfast/base/checked.h"
#include "holdfast/state/collection_json.h"

namespace holdfast {
namespace {

std::string name_of_rank(int rank) { return fmt::format("rank {}", rank); }

Result<SharedCollection> parse_description(int rank, std::string_view text) {
  const std::string where = name_of_rank(rank);
  Topology topology;
  return std::make_shared<const Collection>(
      HOLDFAST_TRY(parse_collection(text, where, topology)));
}

}  // namespace

LiveHolders holders_of(std::span<const RankIdentity> ranks) {
  LiveHolders live;
  std::map<std::string, HostId> hosts;
  std::map<std::string, int> names;
  for (const RankIdentity& rank : ranks) {
    const HostId host =
        hosts.emplace(rank.host, static_cast<HostId>(hosts.size())).first->second;
    const int before = names[rank.name]++;
    live.holders.push_back(
        {.name = before == 0 ? rank.name : fmt::format("{}#{}", rank.name, before + 1),
         .host = host});
  }
  live.topology = Topology::uniform(static_cast<uint32_t>(hosts.size()));
  return live;
}

bool is_nothing(const LocalPiece& piece) {
  return piece.box.empty() && piece.tensor->shape.elements() > 0;
}

LocalPieces without_nothing(LocalPieces pieces) {
  if (std::ranges::any_of(pieces, is_nothing)) {
    std::erase_if(pieces.edit(), is_nothing);
  }
  return pieces;
}

Result<SharedCollection> collection_of_pieces(std::span<const LocalPiece> pieces,
                                              std::string holder) {
  PiecesOfRanks own({{.name = std::move(holder)}});
  for (const LocalPiece& piece : pieces) {
    if (!is_nothing(piece)) HOLDFAST_TRY(own.add(0, *piece.tensor, piece.box));
  }
  return std::make_shared<const Collection>(HOLDFAST_TRY(own.build()));
}

Bytes description_of(const Collection& collection) {
  const std::string text = to_json_text(collection, Topology::uniform(1));
  return copy_of(bytes_of(text));
}

Bytes introduce(const RankIdentity& who, ByteView description) {
  const std::string lines = fmt::format("{}\n{}\n", who.name, who.host);
  Bytes text = copy_of(bytes_of(lines));
  text.insert(text.end(), description.begin(), description.end());
  return text;
}

Result<Introduced> parse_introduced(int rank, std::string_view text) {
  const size_t name = text.find('\n');
  const size_t host = name == text.npos ? text.npos : text.find('\n', name + 1);
  if (host == text.npos) {
    return corrupt("{}: does not say who it is; expected its name and its host",
                   name_of_rank(rank));
  }
  return Introduced{.who = {.name = std::string(text.substr(0, name)),
                            .host = std::string(text.substr(name + 1, host - name - 1))},
                    .description = text.substr(host + 1)};
}

Result<std::vector<SharedCollection>> parse_descriptions(
    std::span<const std::string_view> texts, std::string_view own,
    const SharedCollection& own_pieces) {
  std::unordered_map<std::string_view, SharedCollection> read{{own, own_pieces}};
  std::vector<SharedCollection> all;
  for (size_t r = 0; r < texts.size(); ++r) {
    SharedCollection& one = read[texts[r]];
    if (one == nullptr) {
      one = HOLDFAST_TRY(parse_description(static_cast<int>(r), texts[r]));
    }
    all.push_back(one);
  }
  return all;
}

Result<void> PiecesOfRanks::add(int rank, const Tensor& tensor, const Box& box,
                                When when) {
  const auto [found, added] =
      ids_.emplace(tensor.name, static_cast<TensorId>(tensors_.size()));
  if (added) {
    tensors_.push_back(tensor);
    first_.push_back(rank);
  } else if (tensors_[found->second] != tensor) {
    return differ(tensors_[found->second], first_[found->second], tensor, rank);
  }
  pieces_.push_back({found->second, box, static_cast<HolderId>(rank), when});
  return {};
}

Result<void> PiecesOfRanks::add_all(int rank, const Collection& own, When when) {
  for (TensorId t = 0; t < own.tensors().size(); ++t) {
    for (const Slice& slice : own.layout().slices(t)) {
      HOLDFAST_TRY(add(rank, own.tensor(t), slice.box, when));
    }
  }
  return {};
}

Result<Collection> PiecesOfRanks::build(When when) const {
  LayoutBuilder builder(tensors_, holders_);
  const std::vector<int64_t> bases = HOLDFAST_TRY(base_addresses());
  std::map<std::pair<HolderId, TensorId>, int64_t> used;
  for (const Piece& piece : pieces_) {
    if (piece.when != when) continue;
    int64_t& here = used[{piece.holder, piece.tensor}];
    builder.add(piece.tensor, piece.box, piece.holder, bases[piece.tensor] + here);
    here += piece.box.elements() * bytes_of(tensors_[piece.tensor].dtype);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(tensors_, std::move(layout));
}

Result<std::vector<int64_t>> PiecesOfRanks::base_addresses() const {
  constexpr int64_t kLine = 64;  // of a cache
  std::vector<int64_t> bases;
  int64_t base = 0;
  for (const Tensor& tensor : tensors_) {
    bases.push_back(base);
    const auto end = checked_add(base, tensor.bytes());
    const auto aligned = end ? checked_add(*end, kLine - 1) : std::nullopt;
    if (!aligned) return invalid("{}: too many bytes before it", tensor.name);
    base = *aligned / kLine * kLine;
  }
  return bases;
}

Error PiecesOfRanks::differ(const Tensor& a, int rank_a, const Tensor& b, int rank_b) {
  return invalid(
      "{}: rank {} has {} {}, rank {} has {} {}; expected one tensor for one name "
      "(pipeline stages that each count their layers from 0 need different names)",
      a.name, rank_a, name_of(a.dtype), to_string(a.shape), rank_b, name_of(b.dtype),
      to_string(b.shape));
}

}  // namespace holdfast
