#include "holdfast/checkpoint/write_plan.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "holdfast/formats/safetensors.h"
#include "holdfast/plan/writer_assignment.h"
#include "holdfast/shard/step_name.h"

namespace holdfast {
namespace {

// The key of a piece in the safetensors header, which other tools see: the name for a
// whole tensor, the name and the box for a part.
std::string key_of(const Tensor& tensor, const Box& box) {
  if (box == Box::whole(tensor.shape)) return tensor.name;
  std::string key = tensor.name + "@[";
  for (int k = 0; k < box.rank(); ++k) {
    fmt::format_to(std::back_inserter(key), "{}{}:{}", k == 0 ? "" : ",", box[k].lo,
                   box[k].hi);
  }
  return key + "]";
}

// True if there is one rank and no tensor is cut. Then the rank writes everything, and
// the time to balance the writing of 100,000 tensors is saved.
bool is_undivided(const Layout& layout) {
  if (layout.holders().size() != 1) return false;
  for (TensorId t = 0; t < layout.tensor_count(); ++t) {
    if (layout.slices(t).size() > 1) return false;
  }
  return true;
}

}  // namespace

Result<WritePlan> WritePlan::create(std::shared_ptr<const Collection> collection,
                                    int rank, bool compressed) {
  WritePlan plan;
  plan.shard_name_ = holdfast::shard_name(rank, compressed);
  plan.index_name_ = holdfast::index_name(rank);
  if (is_undivided(collection->layout())) {
    HOLDFAST_TRY(collection->check_covered());
    plan.take_pieces(*collection, rank);
    // Equal offsets make the sort below order the pieces by tensor. Their order in
    // memory does not matter.
    for (Piece& piece : plan.pieces_) piece.offset = 0;
  } else {
    // All ranks write to the same storage, so only the load of the ranks decides which
    // rank writes a replica.
    plan.take_pieces(HOLDFAST_TRY(assign_writers(*collection, Topology::uniform(1))),
                     rank);
  }
  plan.total_bytes_ = collection->bytes();
  plan.collection_ = std::move(collection);
  std::sort(plan.pieces_.begin(), plan.pieces_.end(),
            [](const Piece& a, const Piece& b) {
              return std::pair(a.offset, a.tensor) < std::pair(b.offset, b.tensor);
            });
  Header header = HOLDFAST_TRY(plan.lay_out(plan.pieces_));
  for (size_t i = 0; i < plan.pieces_.size(); ++i) {
    plan.pieces_[i].offset = header.offsets[i];
  }
  plan.header_ = std::move(header.bytes);
  plan.shard_bytes_ = header.file_bytes;
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

Result<WritePlan::Header> WritePlan::lay_out(std::span<const Piece> pieces) const {
  std::vector<SafetensorsEntry> entries;
  entries.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    const Tensor& tensor = collection_->tensor(piece.tensor);
    entries.push_back({.name = key_of(tensor, piece.box),
                       .dtype = tensor.dtype,
                       .shape = piece.box.shape()});
  }
  SafetensorsLayout layout =
      HOLDFAST_TRY(lay_out_safetensors(entries, {{"format", "pt"}}, kDirectAlignment));
  return Header{.bytes = std::move(layout.header),
                .offsets = std::move(layout.offsets),
                .file_bytes = layout.file_bytes};
}

std::vector<LocalPiece> WritePlan::in_memory(const LocalState& state) const {
  std::unordered_multimap<std::string_view, const LocalPiece*> local;
  for (const LocalPiece& piece : state.pieces)
    local.emplace(piece.tensor->name, &piece);
  std::vector<LocalPiece> pieces;
  pieces.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const std::string& name = collection_->tensor(piece.tensor).name;
    const auto [first, last] = local.equal_range(name);
    const auto found = std::find_if(first, last, [&](const auto& entry) {
      return entry.second->box.contains(piece.box);
    });
    HOLDFAST_CHECK(found != last, "{}: box {} is not in memory", name,
                   to_string(piece.box));
    LocalPiece& part = pieces.emplace_back(*found->second);
    part.map = part.map.narrowed(part.box, piece.box);
    part.box = piece.box;
  }
  return pieces;
}

ShardPlan WritePlan::shard_of(std::vector<LocalPiece> pieces) const {
  ShardPlan plan;
  plan.collection_ = collection_;
  plan.shard_ = {.header = header_, .pieces = std::move(pieces), .offsets = {}};
  std::vector<ShardPlan::Entry>& entries = plan.entries_.edit();
  for (const Piece& piece : pieces_) {
    entries.push_back({piece.tensor, piece.box, std::nullopt});
    plan.shard_.offsets.edit().push_back(piece.offset);
  }
  return plan;
}

ShardPlan WritePlan::shard(const LocalState& state) const {
  return shard_of(in_memory(state));
}

ShardPlan WritePlan::shard(const ReadBox& read) const {
  std::vector<LocalPiece> pieces;
  std::unordered_map<TensorId, std::shared_ptr<const Tensor>> tensors;
  for (const Piece& piece : pieces_) {
    std::shared_ptr<const Tensor>& tensor = tensors[piece.tensor];
    if (tensor == nullptr) {
      tensor = std::make_shared<const Tensor>(collection_->tensor(piece.tensor));
    }
    pieces.push_back({.tensor = tensor, .box = piece.box, .memory = {}, .map = {}});
  }
  ShardPlan plan = shard_of(std::move(pieces));
  plan.shard_.read = [read, own = plan.entries_](size_t i, int64_t first,
                                                 ByteSpan into) {
    return read(own[i].tensor, own[i].box, first, into);
  };
  return plan;
}

Result<ShardPlan> WritePlan::shard(const LocalState& state,
                                   std::shared_ptr<const ReusableStep> base) const {
  ShardPlan plan;
  plan.collection_ = collection_;
  plan.base_ = std::move(base);
  std::vector<Piece> written;
  std::vector<bool> linked(plan.base_ == nullptr ? 0 : plan.base_->files().size());
  const std::vector<LocalPiece> pieces = in_memory(state);
  std::vector<ShardPlan::Entry>& entries = plan.entries_.edit();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string& name = collection_->tensor(pieces_[i].tensor).name;
    const Digest128 digest = HOLDFAST_TRY(digest_of(pieces[i]));
    const ReusablePiece* reused = plan.base_ == nullptr || pieces[i].bytes() == 0
                                      ? nullptr
                                      : plan.base_->find(name, pieces_[i].box, digest);
    entries.push_back({pieces_[i].tensor, pieces_[i].box, digest, reused});
    if (reused == nullptr) {
      written.push_back(pieces_[i]);
      plan.shard_.pieces.edit().push_back(pieces[i]);
      continue;
    }
    linked[reused->file] = true;
    plan.reused_bytes_ += pieces[i].bytes();
  }
  for (size_t f = 0; f < linked.size(); ++f) {
    if (linked[f]) plan.links_.push_back(&plan.base_->files()[f]);
  }
  Header header = HOLDFAST_TRY(lay_out(written));
  plan.shard_.header = std::move(header.bytes);
  plan.shard_.offsets = std::move(header.offsets);
  return plan;
}

Bytes ShardPlan::copy_at_once() {
  const auto copied = [](const LocalPiece& piece) {
    return piece.at_once && piece.device == nullptr;
  };
  int64_t total = 0;
  for (const LocalPiece& piece : shard_.pieces) {
    if (copied(piece)) total += piece.bytes();
  }
  if (total == 0) return {};  // edit() would copy the list, which other saves share
  Bytes copies(static_cast<size_t>(total));
  ByteSpan room = copies;
  for (LocalPiece& piece : shard_.pieces.edit()) {
    if (!copied(piece)) continue;
    const ByteSpan copy = room.first(static_cast<size_t>(piece.bytes()));
    gather(piece.place(), piece.memory, 0, copy);
    piece.memory = copy;
    piece.map = Map::dense(piece.box, bytes_of(piece.tensor->dtype));
    room = room.subspan(copy.size());
  }
  return copies;
}

std::vector<std::string> ShardPlan::names(std::span<const size_t> pieces,
                                          const std::vector<std::string>& more) const {
  if (pieces.empty() && more.empty()) return {};
  std::set<std::string> names;
  std::vector<const Entry*> written;  // in the order of the shard's pieces
  for (const Entry& entry : entries_) {
    if (entry.reused == nullptr) written.push_back(&entry);
  }
  for (const size_t piece : pieces) {
    names.insert(collection_->tensor(written[piece]->tensor).name);
  }
  if (!more.empty()) {
    const std::set<std::string> known(more.begin(), more.end());
    for (size_t i = 0; i < written.size(); ++i) {
      const std::string& name = collection_->tensor(written[i]->tensor).name;
      if (!shard_.pieces[i].at_once && known.contains(name)) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

ShardIndex ShardPlan::index(const std::string& shard_name,
                            const WrittenShard& written) const {
  ShardIndex index;
  index.files.push_back({.name = shard_name,
                         .bytes = written.bytes,
                         .chunks = written.chunks,
                         .packed = written.packed});
  std::unordered_map<const ReusableFile*, uint32_t> number_of_file;
  for (const ReusableFile* link : links_) {
    number_of_file[link] = static_cast<uint32_t>(index.files.size());
    index.files.push_back(link->file);
  }
  std::unordered_map<TensorId, uint32_t> number_of_tensor;
  number_of_tensor.reserve(entries_.size());
  index.pieces.reserve(entries_.size());
  size_t next = 0;  // in the shard
  for (const Entry& entry : entries_) {
    const auto [tensor, added] = number_of_tensor.emplace(
        entry.tensor, static_cast<uint32_t>(index.tensors.size()));
    if (added) index.tensors.push_back(collection_->tensor(entry.tensor));
    StoredPiece piece{.tensor = tensor->second,
                      .box = entry.box,
                      .file = 0,
                      .offset = 0,
                      .seal = {},
                      .xxh3 = entry.digest};
    if (entry.reused != nullptr) {
      piece.file = number_of_file.at(&base_->files()[entry.reused->file]);
      piece.offset = entry.reused->offset;
      piece.seal = entry.reused->seal;
    } else {
      piece.offset = shard_.offsets[next];
      piece.seal = written.seals[next++];
    }
    index.pieces.push_back(piece);
  }
  return index;
}

}  // namespace holdfast
