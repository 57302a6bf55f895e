#include "holdfast/state/collection_json.h"

#include <algorithm>
#include <unordered_map>

#include "holdfast/base/json_fields.h"
#include "holdfast/state/tensor_fields.h"

namespace holdfast {

// The document, in which tensors, holders and hosts are known by their names.
namespace collection_document {

struct Copy {
  std::string holder{};
  int64_t offset = 0;
  std::optional<std::vector<int64_t>> strides{};

  static void fields(auto& self, auto&& field) {
    field("holder", self.holder);
    field("offset", self.offset);
    field.optional("strides", self.strides);
  }
};

struct Piece {
  std::string tensor{};
  std::vector<std::pair<int64_t, int64_t>> extents{};
  std::vector<Copy> copies{};

  static void fields(auto& self, auto&& field) {
    field("tensor", self.tensor);
    field("box", self.extents);
    field("copies", self.copies);
  }
};

Result<HolderKind> parse_kind(const std::string& kind) {
  if (kind == "memory") return HolderKind::kMemory;
  if (kind == "file") return HolderKind::kFile;
  return invalid("kind \"{}\"; expected memory or file", kind);
}

struct Holding {
  std::string name{};
  HolderKind kind = HolderKind::kMemory;
  std::string host{};

  static void fields(auto& self, auto&& field) {
    field("name", self.name);
    field.text("kind", self.kind,
               [](HolderKind kind) { return kind == HolderKind::kFile ? "file" : "memory"; },
               parse_kind);
    field("host", self.host);
  }
};

struct Document {
  std::vector<Host> hosts{};
  std::vector<Holding> holders{};
  std::vector<Tensor> tensors{};
  std::vector<Piece> slices{};

  static void fields(auto& self, auto&& field) {
    field.kind("collection");
    field.version(kCollectionVersion);
    field("hosts", self.hosts);
    field("holders", self.holders);
    field("tensors", self.tensors);
    field("slices", self.slices);
  }
};

}  // namespace collection_document

void fields(Is<Host> auto& self, auto&& field) {
  field("name", self.name);
  field.optional("island", self.island, 0, UINT32_MAX);
  field.optional("shared_storage", self.shared_storage);
}

namespace {

using collection_document::Document;
using collection_document::Holding;
using collection_document::Piece;
using Names = std::unordered_map<std::string, uint32_t>;

Result<uint32_t> look_up(const Names& names, const std::string& name) {
  const auto found = names.find(name);
  if (found == names.end()) return invalid("\"{}\" is not listed", name);
  return found->second;
}

// Adds the hosts to the topology, and gives their numbers in it.
Result<Names> add_hosts(const std::vector<Host>& list, Topology& topology) {
  Names known, numbers;
  for (HostId h = 0; h < topology.hosts.size(); ++h) known[topology.hosts[h].name] = h;
  for (const Host& host : list) {
    const auto next = static_cast<HostId>(topology.hosts.size());
    const HostId id = known.emplace(host.name, next).first->second;
    if (id == next) topology.hosts.push_back(host);
    if (topology.hosts[id] != host) {
      return invalid("hosts: host {} is described in two ways", host.name);
    }
    if (!numbers.emplace(host.name, id).second) {
      return invalid("hosts: host {} is listed twice", host.name);
    }
  }
  return numbers;
}

Result<void> add_copies(const Piece& piece, TensorId tensor, const Names& holders,
                        LayoutBuilder& builder) {
  std::vector<Extent> extents;
  for (const auto& [lo, hi] : piece.extents) extents.push_back({lo, hi});
  const Box box = HOLDFAST_TRY(Box::create(extents));
  for (const auto& [name, offset, strides] : piece.copies) {
    const HolderId holder = HOLDFAST_TRY(look_up(holders, name));
    if (!strides) {
      builder.add(tensor, box, holder, offset);
      continue;
    }
    if (strides->size() != static_cast<size_t>(box.rank())) {
      return invalid("{} strides; expected {}", strides->size(), box.rank());
    }
    Map map{.offset = offset};
    std::ranges::copy(*strides, map.strides.begin());
    builder.add(tensor, box, holder, map);
  }
  return {};
}

Result<Collection> build(Document document, Topology& topology) {
  const Names hosts = HOLDFAST_TRY(add_hosts(document.hosts, topology));
  Names holder_ids, tensor_ids;
  std::vector<Holder> holders;
  for (const Holding& one : document.holders) {
    const HostId host = HOLDFAST_TRY(
        look_up(hosts, one.host).within(fmt::format("holders[{}]", holders.size())));
    holder_ids.emplace(one.name, static_cast<uint32_t>(holders.size()));
    holders.push_back({.name = one.name, .kind = one.kind, .host = host});
  }
  for (TensorId t = 0; t < document.tensors.size(); ++t) {
    tensor_ids.emplace(document.tensors[t].name, t);
  }
  LayoutBuilder builder(document.tensors, std::move(holders));
  for (size_t i = 0; i < document.slices.size(); ++i) {
    const std::string where = fmt::format("slices[{}]", i);
    const Piece& piece = document.slices[i];
    const TensorId tensor =
        HOLDFAST_TRY(look_up(tensor_ids, piece.tensor).within(where));
    HOLDFAST_TRY(add_copies(piece, tensor, holder_ids, builder).within(where));
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(std::move(document.tensors), std::move(layout));
}

Piece piece_of(const Collection& collection, TensorId t, const Slice& slice) {
  const Layout& layout = collection.layout();
  const int64_t element = bytes_of(collection.tensor(t).dtype);
  Piece piece{.tensor = collection.tensor(t).name};
  for (const Extent& e : slice.box.extents()) piece.extents.emplace_back(e.lo, e.hi);
  for (PieceId p = slice.first; p < slice.last; ++p) {
    const Map map = layout.map(p, element);
    const bool dense = map == Map::dense(slice.box, element, map.offset);
    const auto rank = static_cast<std::ptrdiff_t>(slice.box.rank());
    piece.copies.push_back({.holder = layout.holders()[layout.holder(p)].name,
                            .offset = map.offset});
    if (!dense) {
      piece.copies.back().strides.emplace(map.strides.begin(),
                                          map.strides.begin() + rank);
    }
  }
  return piece;
}

}  // namespace

std::string to_json_text(const Collection& collection, const Topology& topology,
                         int indent) {
  const auto tensors = collection.tensors();
  Document document{.hosts = topology.hosts,
                    .tensors = {tensors.begin(), tensors.end()}};
  for (const Holder& holder : collection.layout().holders()) {
    document.holders.push_back(
        {holder.name, holder.kind, topology.hosts[holder.host].name});
  }
  for (TensorId t = 0; t < tensors.size(); ++t) {
    for (const Slice& slice : collection.layout().slices(t)) {
      document.slices.push_back(piece_of(collection, t, slice));
    }
  }
  return to_json_text(document, {.indent = indent});
}

Result<Collection> parse_collection(std::string_view json, std::string_view where,
                                    Topology& topology) {
  return build(HOLDFAST_TRY(from_json<Document>(json, where)), topology).within(where);
}

}  // namespace holdfast
