#include "holdfast/state/collection_json.h"

#include <unordered_map>

#include "holdfast/base/json.h"

namespace holdfast {
namespace {

using Names = std::unordered_map<std::string, uint32_t>;

Result<uint32_t> look_up(const Names& names, const std::string& name,
                         const std::string& where) {
  const auto found = names.find(name);
  if (found == names.end()) return invalid("{}: \"{}\" is not listed", where, name);
  return found->second;
}

Result<std::vector<int64_t>> read_integers(const Json& array, const std::string& where,
                                           int64_t least) {
  std::vector<int64_t> numbers;
  for (const Json& value : array) {
    numbers.push_back(HOLDFAST_TRY(json_integer(value, where, least)));
  }
  return numbers;
}

std::string item(std::string_view where, const char* list, size_t i) {
  return fmt::format("{}: {}[{}]", where, list, i);
}

class CollectionReader {
 public:
  CollectionReader(std::string_view where, Topology& topology)
      : where_(where), topology_(topology) {}

  Result<Collection> read(const Json& json) {
    Fields fields = HOLDFAST_TRY(Fields::of(json, where_));
    const std::string kind = HOLDFAST_TRY(fields.text("holdfast"));
    if (kind != "collection") {
      return invalid("{}: holds a \"{}\"; expected a \"collection\"", where_, kind);
    }
    const int64_t version = HOLDFAST_TRY(fields.integer("version"));
    if (version != kCollectionVersion) {
      return unsupported("{}: version {}; expected {}", where_, version,
                         kCollectionVersion);
    }
    HOLDFAST_TRY(read_hosts(*HOLDFAST_TRY(fields.array("hosts"))));
    HOLDFAST_TRY(read_holders(*HOLDFAST_TRY(fields.array("holders"))));
    HOLDFAST_TRY(read_tensors(*HOLDFAST_TRY(fields.array("tensors"))));
    LayoutBuilder builder(tensors_, std::move(holders_));
    HOLDFAST_TRY(read_slices(*HOLDFAST_TRY(fields.array("slices")), builder));
    HOLDFAST_TRY(fields.done());
    Layout layout = HOLDFAST_TRY(std::move(builder).build().within(where_));
    return Collection::create(std::move(tensors_), std::move(layout)).within(where_);
  }

 private:
  Result<void> read_hosts(const Json& list) {
    Names known;
    for (HostId h = 0; h < topology_.hosts.size(); ++h) {
      known.emplace(topology_.hosts[h].name, h);
    }
    for (size_t i = 0; i < list.size(); ++i) {
      Fields fields = HOLDFAST_TRY(Fields::of(list[i], item(where_, "hosts", i)));
      Host host{.name = HOLDFAST_TRY(fields.text("name"))};
      if (fields.has("island")) {
        host.island = static_cast<uint32_t>(
            HOLDFAST_TRY(fields.integer("island", 0, UINT32_MAX)));
      }
      if (fields.has("shared_storage")) {
        host.shared_storage = HOLDFAST_TRY(fields.boolean("shared_storage"));
      }
      HOLDFAST_TRY(fields.done());
      const auto next = static_cast<HostId>(topology_.hosts.size());
      const HostId id = known.emplace(host.name, next).first->second;
      if (id == next) topology_.hosts.push_back(host);
      if (topology_.hosts[id] != host) {
        return invalid("{}: host {} is described in two ways", fields.where(),
                       host.name);
      }
      if (!hosts_.emplace(host.name, id).second) {
        return invalid("{}: host {} is listed twice", fields.where(), host.name);
      }
    }
    return {};
  }

  Result<void> read_holders(const Json& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      Fields fields = HOLDFAST_TRY(Fields::of(list[i], item(where_, "holders", i)));
      Holder holder{.name = HOLDFAST_TRY(fields.text("name"))};
      const std::string kind = HOLDFAST_TRY(fields.text("kind"));
      if (kind != "memory" && kind != "file") {
        return invalid("{}: kind \"{}\"; expected memory or file", fields.where(),
                       kind);
      }
      holder.kind = kind == "file" ? HolderKind::kFile : HolderKind::kMemory;
      holder.host = HOLDFAST_TRY(
          look_up(hosts_, HOLDFAST_TRY(fields.text("host")), fields.where()));
      HOLDFAST_TRY(fields.done());
      holder_ids_.emplace(holder.name, static_cast<uint32_t>(i));
      holders_.push_back(std::move(holder));
    }
    return {};
  }

  Result<void> read_tensors(const Json& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      tensors_.push_back(
          HOLDFAST_TRY(read_tensor(list[i], item(where_, "tensors", i))));
      tensor_ids_.emplace(tensors_.back().name, static_cast<uint32_t>(i));
    }
    return {};
  }

  Result<Tensor> read_tensor(const Json& json, std::string where) {
    Fields fields = HOLDFAST_TRY(Fields::of(json, std::move(where)));
    Tensor tensor = HOLDFAST_TRY(tensor_from_fields(fields));
    HOLDFAST_TRY(fields.done());
    return tensor;
  }

  Result<void> read_slices(const Json& list, LayoutBuilder& builder) {
    for (size_t i = 0; i < list.size(); ++i) {
      Fields fields = HOLDFAST_TRY(Fields::of(list[i], item(where_, "slices", i)));
      const TensorId tensor = HOLDFAST_TRY(
          look_up(tensor_ids_, HOLDFAST_TRY(fields.text("tensor")), fields.where()));
      const Box box =
          HOLDFAST_TRY(read_box(*HOLDFAST_TRY(fields.array("box")), fields.where()));
      const Json& copies = *HOLDFAST_TRY(fields.array("copies"));
      for (size_t c = 0; c < copies.size(); ++c) {
        HOLDFAST_TRY(read_copy(copies[c],
                               fmt::format("{}.copies[{}]", fields.where(), c), tensor,
                               box, builder));
      }
      HOLDFAST_TRY(fields.done());
    }
    return {};
  }

  static Result<Box> read_box(const Json& json, const std::string& where) {
    std::vector<Extent> extents;
    for (const Json& pair : json) {
      if (!pair.is_array() || pair.size() != 2) {
        return invalid(
            "{}.box: not a list of pairs; expected [lo, hi] for each dimension", where);
      }
      extents.push_back({HOLDFAST_TRY(json_integer(pair[0], where + ".box")),
                         HOLDFAST_TRY(json_integer(pair[1], where + ".box"))});
    }
    return Box::create(extents).within(where);
  }

  Result<void> read_copy(const Json& json, std::string where, TensorId tensor,
                         const Box& box, LayoutBuilder& builder) {
    Fields fields = HOLDFAST_TRY(Fields::of(json, std::move(where)));
    const HolderId holder = HOLDFAST_TRY(
        look_up(holder_ids_, HOLDFAST_TRY(fields.text("holder")), fields.where()));
    const int64_t offset = HOLDFAST_TRY(fields.integer("offset"));
    if (!fields.has("strides")) {
      builder.add(tensor, box, holder, offset);
      return fields.done();
    }
    const auto strides = HOLDFAST_TRY(read_integers(
        *HOLDFAST_TRY(fields.array("strides")), fields.where() + ".strides",
        std::numeric_limits<int64_t>::min()));
    if (strides.size() != static_cast<size_t>(box.rank())) {
      return invalid("{}: {} strides; expected {}", fields.where(), strides.size(),
                     box.rank());
    }
    Map map{.offset = offset};
    std::copy(strides.begin(), strides.end(), map.strides.begin());
    builder.add(tensor, box, holder, map);
    return fields.done();
  }

  std::string where_;
  Topology& topology_;
  Names hosts_, holder_ids_, tensor_ids_;
  std::vector<Holder> holders_;
  std::vector<Tensor> tensors_;
};

OrderedJson host_json(const Host& host) {
  OrderedJson json{{"name", host.name}};
  if (host.island != 0) json["island"] = host.island;
  if (host.shared_storage) json["shared_storage"] = true;
  return json;
}

OrderedJson tensor_json(const Tensor& tensor) {
  OrderedJson json{{"name", tensor.name},
                   {"dtype", name_of(tensor.dtype)},
                   {"shape", tensor.shape.sizes()},
                   {"role", name_of(tensor.role)}};
  if (!tensor.of.empty()) json["of"] = tensor.of;
  if (!tensor.aliases.empty()) json["ties"] = tensor.aliases;
  if (tensor.pad_multiple != 0) json["pad_multiple"] = tensor.pad_multiple;
  return json;
}

OrderedJson slice_json(const Collection& collection, TensorId t, const Slice& slice) {
  const Layout& layout = collection.layout();
  const int64_t element = bytes_of(collection.tensor(t).dtype);
  OrderedJson box = OrderedJson::array(), copies = OrderedJson::array();
  for (const Extent& extent : slice.box.extents())
    box.push_back({extent.lo, extent.hi});
  for (PieceId p = slice.first; p < slice.last; ++p) {
    const Map map = layout.map(p, element);
    OrderedJson copy{{"holder", layout.holders()[layout.holder(p)].name},
                     {"offset", map.offset}};
    if (map != Map::dense(slice.box, element, map.offset)) {
      copy["strides"] =
          std::span(map.strides).first(static_cast<size_t>(slice.box.rank()));
    }
    copies.push_back(std::move(copy));
  }
  return {{"tensor", collection.tensor(t).name}, {"box", box}, {"copies", copies}};
}

}  // namespace

OrderedJson to_json(const Collection& collection, const Topology& topology) {
  OrderedJson json{{"holdfast", "collection"}, {"version", kCollectionVersion}};
  json["hosts"] = OrderedJson::array();
  json["holders"] = OrderedJson::array();
  json["tensors"] = OrderedJson::array();
  json["slices"] = OrderedJson::array();
  for (const Host& host : topology.hosts) json["hosts"].push_back(host_json(host));
  for (const Holder& holder : collection.layout().holders()) {
    json["holders"].push_back(
        {{"name", holder.name},
         {"kind", holder.kind == HolderKind::kFile ? "file" : "memory"},
         {"host", topology.hosts[holder.host].name}});
  }
  for (TensorId t = 0; t < collection.tensors().size(); ++t) {
    json["tensors"].push_back(tensor_json(collection.tensor(t)));
    for (const Slice& slice : collection.layout().slices(t)) {
      json["slices"].push_back(slice_json(collection, t, slice));
    }
  }
  return json;
}

Result<Tensor> tensor_from_fields(Fields& fields) {
  Tensor tensor;
  tensor.name = HOLDFAST_TRY(fields.text("name"));
  tensor.dtype = HOLDFAST_TRY(
      parse_dtype(HOLDFAST_TRY(fields.text("dtype"))).within(fields.where()));
  const auto sizes = HOLDFAST_TRY(read_integers(*HOLDFAST_TRY(fields.array("shape")),
                                                fields.where() + ".shape", 0));
  tensor.shape = HOLDFAST_TRY(Shape::create(sizes).within(fields.where()));
  if (fields.has("role")) {
    tensor.role = HOLDFAST_TRY(
        parse_role(HOLDFAST_TRY(fields.text("role"))).within(fields.where()));
  }
  if (fields.has("of")) tensor.of = HOLDFAST_TRY(fields.text("of"));
  if (fields.has("pad_multiple")) {
    tensor.pad_multiple =
        HOLDFAST_TRY(fields.integer("pad_multiple", 0, int64_t{1} << 32));
  }
  if (!fields.has("ties")) return tensor;
  for (const Json& alias : *HOLDFAST_TRY(fields.array("ties"))) {
    if (!alias.is_string()) {
      return invalid("{}.ties: {}; expected a string", fields.where(),
                     alias.type_name());
    }
    tensor.aliases.push_back(alias.get<std::string>());
  }
  return tensor;
}

Result<Collection> collection_from_json(const Json& json, std::string_view where,
                                        Topology& topology) {
  return CollectionReader(where, topology).read(json);
}

}  // namespace holdfast
