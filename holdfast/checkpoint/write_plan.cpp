#include "holdfast/checkpoint/write_plan.h"

#include <algorithm>
#include <unordered_map>

#include "holdfast/formats/safetensors.h"
#include "holdfast/state/writers.h"

namespace holdfast {
namespace {

// Keys that other tools see: a whole tensor by its name, a part with its box.
std::string key_of(const Tensor& tensor, const Box& box) {
  if (box == Box::whole(tensor.shape)) return tensor.name;
  std::string key = tensor.name + "@[";
  for (int k = 0; k < box.rank(); ++k) {
    fmt::format_to(std::back_inserter(key), "{}{}:{}", k == 0 ? "" : ",", box[k].lo,
                   box[k].hi);
  }
  return key + "]";
}

// Nobody to share the writing with, and nothing twice: 100,000 tensors need no balance.
bool is_undivided(const Layout& layout) {
  if (layout.holders().size() != 1) return false;
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    if (layout.slices(t).size() > 1) return false;
  }
  return true;
}

}  // namespace

std::string rank_name(int rank) { return fmt::format("rank-{:04}", rank); }

Result<WritePlan> WritePlan::create(std::shared_ptr<const Collection> collection,
                                    int rank) {
  WritePlan plan;
  plan.shard_name_ = rank_name(rank) + ".safetensors";
  plan.index_name_ = rank_name(rank) + ".index.json";
  if (is_undivided(collection->layout())) {
    HOLDFAST_TRY(collection->check_covered());
    plan.take_pieces(*collection, rank);
    // In order of tensors; where they are in memory is nobody's business.
    for (Piece& piece : plan.pieces_) piece.offset = 0;
  } else {
    // All ranks write to one place, so who writes what depends on their load alone.
    plan.take_pieces(HOLDFAST_TRY(assign_writers(*collection, Topology::uniform(1))),
                     rank);
  }
  plan.total_bytes_ = collection->bytes();
  plan.collection_ = std::move(collection);
  HOLDFAST_TRY(plan.lay_out());
  return plan;
}

void WritePlan::take_pieces(const Collection& files, int rank) {
  const Layout& layout = files.layout();
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    const int64_t element = bytes_of(files.tensor(t).dtype);
    for (const Slice& slice : layout.slices(t)) {
      if (layout.holder(slice.first) != static_cast<HolderId>(rank)) continue;
      pieces_.push_back({t, slice.box, layout.map(slice.first, element).offset});
    }
  }
}

Result<void> WritePlan::lay_out() {
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.offset, a.tensor) < std::pair(b.offset, b.tensor);
  });
  std::vector<SafetensorsEntry> entries;
  for (const Piece& piece : pieces_) {
    const Tensor& tensor = collection_->tensor(piece.tensor);
    entries.push_back({.name = key_of(tensor, piece.box),
                       .dtype = tensor.dtype,
                       .shape = piece.box.shape()});
  }
  SafetensorsLayout layout =
      HOLDFAST_TRY(lay_out_safetensors(entries, {{"format", "pt"}}, kDirectAlignment));
  for (size_t i = 0; i < pieces_.size(); ++i) pieces_[i].offset = layout.offsets[i];
  header_ = std::move(layout.header);
  shard_bytes_ = layout.file_bytes;
  return {};
}

ShardToWrite WritePlan::shard(const LocalState& state) const {
  std::unordered_multimap<TensorId, const LocalPiece*> local;
  for (const LocalPiece& piece : state.pieces) local.emplace(piece.tensor, &piece);
  ShardToWrite shard{.header = header_, .pieces = {}};
  shard.pieces.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const auto [first, last] = local.equal_range(piece.tensor);
    const auto found = std::find_if(first, last, [&](const auto& entry) {
      return entry.second->box.contains(piece.box);
    });
    HOLDFAST_CHECK(found != last, "{}: box {} is not in memory",
                   collection_->tensor(piece.tensor).name, to_string(piece.box));
    const LocalPiece& from = *found->second;
    shard.pieces.push_back({.shape = collection_->tensor(piece.tensor).shape,
                            .dtype = collection_->tensor(piece.tensor).dtype,
                            .box = piece.box,
                            .offset = piece.offset,
                            .memory = from.memory,
                            .map = from.map.narrowed(from.box, piece.box)});
  }
  return shard;
}

ShardIndex WritePlan::index(const WrittenShard& written) const {
  ShardIndex index;
  index.files.push_back(
      {.name = shard_name_, .bytes = written.bytes, .chunks = written.chunks});
  std::unordered_map<TensorId, uint32_t> number;
  number.reserve(pieces_.size());
  index.pieces.reserve(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const auto [entry, added] =
        number.emplace(pieces_[i].tensor, static_cast<uint32_t>(index.tensors.size()));
    if (added) index.tensors.push_back(collection_->tensor(pieces_[i].tensor));
    index.pieces.push_back({.tensor = entry->second,
                            .box = pieces_[i].box,
                            .file = 0,
                            .offset = pieces_[i].offset,
                            .seal = written.seals[i],
                            .xxh3 = std::nullopt});
  }
  return index;
}

}  // namespace holdfast
