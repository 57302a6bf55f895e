// Opens the folders of DCP: finds the bytes of each chunk in its item.
#include <algorithm>
#include <set>

#include "holdfast/base/checked.h"
#include "holdfast/base/json_text.h"
#include "holdfast/contents/checked_source.h"
#include "holdfast/contents/side_metadata.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/dcp.h"
#include "holdfast/formats/dcp_internal.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast {
namespace dcp {
namespace {

using torch_zip::OpenedArchive;
using torch_zip::Placed;

// The text that has the ties of a folder that Holdfast wrote (side_metadata.h).
constexpr const char* kTiesText = "holdfast.ties";

// Puts the name of the entry before the names of the tensors in its item. An item that
// is one bare tensor has the name of the entry.
std::string name_in(const std::string& entry, const OpenedArchive& archive,
                    const std::string& name) {
  const bool bare = archive.tree.objects.as<Object::TensorName>() != nullptr;
  return bare ? entry : fmt::format("{}.{}", entry, name);
}

void rename_leaves(const std::string& entry, const OpenedArchive& archive,
                   Object& object) {
  const auto rename = [&](Object& inner) { rename_leaves(entry, archive, inner); };
  if (auto* leaf = std::get_if<Object::TensorName>(&object.value())) {
    leaf->name = name_in(entry, archive, leaf->name);
  } else if (auto* list = std::get_if<Object::List>(&object.value())) {
    std::ranges::for_each(list->items, rename);
  } else if (auto* tuple = std::get_if<Object::Tuple>(&object.value())) {
    std::ranges::for_each(tuple->items, rename);
  } else if (auto* dict = std::get_if<Object::Dict>(&object.value())) {
    for (auto& [key, value] : dict->items) rename(value);
  }
}

class FolderOpener {
 public:
  FolderOpener(Env& env, const Path& folder, const Metadata& metadata)
      : where_((folder / kMetadataFile).native()),
        metadata_(metadata),
        files_(env, folder) {}

  Result<OpenedFolder> open() {
    HOLDFAST_TRY(check_items());
    for (const Entry& entry : metadata_.entries) HOLDFAST_TRY(add_entry(entry));
    return make_folder();
  }

 private:
  // A file of the folder and the records of all items in it.
  struct ItemFile {
    std::shared_ptr<const Source> source{};
    std::vector<CheckedRecord> records{};
  };
  // A holder is a file. Overlapping views in one item have holders of their own.
  struct FileHolder {
    std::string file{};
    HolderId number = 0;
  };
  struct Piece {
    TensorId tensor = 0;
    Box box{};
    HolderId holder = 0;
    Map map{};
  };
  // A value of the state dict: a tensor, or an object.
  struct Leaf {
    const Entry* entry = nullptr;
    std::optional<TensorId> tensor{};
    bool first = true;  // no entry before it has the same tensor
    Object object{};
  };

  // Items may be the same, but may not share some bytes. All must be in their files, also
  // those without elements, which are not read.
  Result<void> check_items() {
    const NamedItem* before = nullptr;
    for (const NamedItem& next : metadata_.items) {
      const bool apart = before == nullptr || before->item == next.item ||
                         before->item.file != next.item.file ||
                         before->item.offset + before->item.length <= next.item.offset;
      if (!apart) {
        return corrupt("{}: the items of {} and {} share bytes of {}", where_,
                       shown(before->entry), shown(next.entry), shown(next.item.file));
      }
      HOLDFAST_TRY(open_item(HOLDFAST_TRY(file_of(next))->source, next));
      before = &next;
    }
    return {};
  }

  Result<void> add_entry(const Entry& entry) {
    if (entry.odd.empty()) return entry.tensor ? add_tensor(entry) : add_object(entry);
    leave_out(entry, entry.odd);
    return {};
  }

  void leave_out(const Entry& entry, std::string_view why) {
    left_out_.push_back(fmt::format("{}: {}", entry.name, why));
  }

  // Leaves an entry out if torch has saved a view in its item whose elements are not those of
  // the file.
  bool leave_out_computed(const Entry& entry, const OpenedArchive& archive) {
    if (archive.views.computed.empty()) return false;
    leave_out(entry, "has an expanded or conjugated tensor; expected a clone");
    return true;
  }

  // Tensors.

  Result<void> add_tensor(const Entry& entry) {
    const Entry* twin = HOLDFAST_TRY(find_twin(entry));
    if (twin != nullptr && !tensor_of_.contains(twin->name)) {
      leave_out(entry, fmt::format("has the item of {}, which is left out",
                                   shown(twin->name)));
      return {};
    }
    if (twin != nullptr) {
      const TensorId id = tensor_of_.at(twin->name);
      tensor_of_[entry.name] = id;
      ties_.emplace_back(id, entry.name);
      leaves_.push_back({.entry = &entry, .tensor = id, .first = false});
      return {};
    }
    const auto id = static_cast<TensorId>(tensors_.size());
    const size_t pieces = pieces_.size();
    for (const Chunk& chunk : entry.chunks) {
      if (HOLDFAST_TRY(add_chunk(entry, id, chunk))) continue;
      pieces_.resize(pieces);
      return {};
    }
    tensors_.push_back(
        {.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
    tensor_of_[entry.name] = id;
    leaves_.push_back({.entry = &entry, .tensor = id});
    return {};
  }

  // The entry before this one that has the same items, or null.
  Result<const Entry*> find_twin(const Entry& entry) {
    const Entry* twin = nullptr;
    for (const Chunk& chunk : entry.chunks) {
      const auto [owner, is_new] = owner_of_.emplace(chunk.item, &entry);
      if (is_new) continue;
      twin = owner->second;
      const bool same = twin != &entry && twin->dtype == entry.dtype &&
                        twin->shape == entry.shape && twin->chunks == entry.chunks;
      if (same) return twin;
      return corrupt("{}: {} and {} have the same item, but are not the same tensor",
                     where_, shown(twin->name), shown(entry.name));
    }
    return twin;
  }

  // Returns false, and leaves the entry out, if the chunk cannot be read.
  Result<bool> add_chunk(const Entry& entry, TensorId id, const Chunk& chunk) {
    const NamedItem item{chunk.item, entry.name};
    const OpenedArchive archive = HOLDFAST_TRY(open_archive_of(item));
    if (leave_out_computed(entry, archive)) return false;
    const std::vector<Placed>& stored = archive.views.stored;
    const bool bare = archive.tree.objects.as<Object::TensorName>() != nullptr;
    if (!bare || stored.size() != 1) {
      return corrupt("{}: the item of {} is no tensor; expected one", where_,
                     shown(entry.name));
    }
    const Placed& placed = stored.front();
    if (placed.tensor.dtype != entry.dtype ||
        placed.tensor.shape != chunk.box.shape()) {
      return corrupt("{}: the item of {} {} has {} {}; expected {} {}", where_,
                     shown(entry.name), to_string(chunk.box),
                     name_of(placed.tensor.dtype), to_string(placed.tensor.shape),
                     name_of(entry.dtype), to_string(chunk.box.shape()));
    }
    add_piece(id, chunk.box, chunk.item, placed);
    return true;
  }

  void add_piece(TensorId id, const Box& box, const Item& item, const Placed& placed) {
    Map map = placed.map;
    map.offset += item.offset;
    pieces_.push_back({id, box, holder_of(item.file, placed.holder), map});
  }

  HolderId holder_of(const std::string& file, HolderId number) {
    const auto [found, is_new] = holder_ids_.emplace(
        std::pair(file, number), static_cast<HolderId>(holders_.size()));
    if (is_new) holders_.push_back({file, number});
    return found->second;
  }

  // Objects.

  Result<void> add_object(const Entry& entry) {
    const auto [owner, is_new] = owner_of_.emplace(entry.object, &entry);
    if (!is_new) {
      return corrupt("{}: {} and {} have the same item; expected items of their own",
                     where_, shown(owner->second->name), shown(entry.name));
    }
    OpenedArchive archive = HOLDFAST_TRY(open_archive_of({entry.object, entry.name}));
    if (leave_out_computed(entry, archive)) return {};
    const auto* text = archive.tree.objects.as<std::string>();
    if (text != nullptr && entry.name.starts_with(kKeptPrefix)) {
      kept_[entry.name] = *text;
      return {};
    }
    add_tensors_of(entry, archive);
    add_lines(entry, archive.tree.simplified, simplified_);
    add_lines(entry, archive.tree.left_out, left_out_);
    rename_leaves(entry.name, archive, archive.tree.objects);
    leaves_.push_back({.entry = &entry, .object = std::move(archive.tree.objects)});
    return {};
  }

  // Adds lines on the objects in an item, whose names begin with that of the item.
  static void add_lines(const Entry& entry, const std::vector<std::string>& lines,
                        std::vector<std::string>& all) {
    constexpr std::string_view kWhole = "the saved object";
    for (const std::string& line : lines) {
      all.push_back(line.starts_with(kWhole) ? entry.name + line.substr(kWhole.size())
                                             : entry.name + "." + line);
    }
  }

  // Tensors in a tuple are in the item of the tuple.
  void add_tensors_of(const Entry& entry, const OpenedArchive& archive) {
    for (const Placed& placed : archive.views.stored) {
      const auto id = static_cast<TensorId>(tensors_.size());
      Tensor tensor = placed.tensor;
      tensor.name = name_in(entry.name, archive, tensor.name);
      for (std::string& alias : tensor.aliases) {
        alias = name_in(entry.name, archive, alias);
      }
      tensors_.push_back(std::move(tensor));
      add_piece(id, Box::whole(placed.tensor.shape), entry.object, placed);
    }
  }

  // Items.

  Result<ItemFile*> file_of(const NamedItem& item) {
    ItemFile& file = item_files_[item.item.file];
    if (file.source == nullptr) {
      file.source = HOLDFAST_TRY(files_.open(item.item.file));
    }
    return &file;
  }

  Result<OpenedArchive> open_archive_of(const NamedItem& item) {
    ItemFile& file = *HOLDFAST_TRY(file_of(item));
    OpenedArchive archive = HOLDFAST_TRY(
        torch_zip::open_archive(HOLDFAST_TRY(open_item(file.source, item))));
    for (const ZipEntry& entry : archive.entries) {
      file.records.push_back(
          {.name = fmt::format("{}: entry {}", shown(item.entry), entry.name),
           .offset = item.item.offset + entry.offset,
           .size = entry.size,
           .crc = entry.crc == 0 ? std::nullopt : std::optional(entry.crc)});
    }
    return archive;
  }

  // Contents.

  Result<OpenedFolder> make_folder() {
    if (!kept_.contains(kTiesText)) {
      for (const auto& [id, name] : ties_) tensors_[id].aliases.push_back(name);
    }
    RestoredTexts restored = HOLDFAST_TRY(restore_kept(kept_, tensors_, where_));
    std::unordered_map<std::string, std::string> names;
    for (const auto& [name, id] : tensor_of_) names[name] = tensors_[id].name;
    Object objects = std::move(restored.objects);
    if (objects.none()) objects = HOLDFAST_TRY(make_objects());
    Contents contents{.collection = HOLDFAST_TRY(make_collection()),
                      .sources = {},
                      .objects = std::move(objects),
                      .metadata = std::move(restored.metadata),
                      .simplified = std::move(simplified_),
                      .left_out = std::move(left_out_)};
    add_sources(contents);
    return OpenedFolder{std::move(contents), std::move(names)};
  }

  Result<Object> make_objects() const {
    const bool flat = std::ranges::all_of(
        leaves_, [](const Leaf& leaf) { return is_flat(*leaf.entry); });
    if (flat) return Object();
    TreeBuilder tree;
    for (const Leaf& leaf : leaves_) {
      Object value = leaf.tensor
                         ? leaf_of(tensors_[*leaf.tensor], leaf.entry->name, leaf.first)
                         : leaf.object;
      if (tree.add(leaf.entry->path, std::move(value))) continue;
      return corrupt("{}: the path of {} is empty, too long or that of another value",
                     where_, shown(leaf.entry->name));
    }
    return tree.finish(where_);
  }

  Result<Collection> make_collection() {
    std::vector<Holder> holders;
    for (const FileHolder& holder : holders_) {
      const std::string more =
          holder.number == 0 ? "" : fmt::format("#{}", holder.number);
      holders.push_back({.name = item_files_.at(holder.file).source->name() + more,
                         .kind = HolderKind::kFile});
    }
    LayoutBuilder builder(tensors_, std::move(holders));
    for (const Piece& piece : pieces_) {
      builder.add(piece.tensor, piece.box, piece.holder, piece.map);
    }
    Result<Layout> layout = std::move(builder).build();
    if (!layout.ok()) return layout.error().within(where_).as(ErrorCode::kCorrupt);
    auto collection = Collection::create(std::move(tensors_), *std::move(layout));
    if (!collection.ok()) {
      return collection.error().within(where_).as(ErrorCode::kCorrupt);
    }
    const Result<void> covered = collection->check_covered();
    if (!covered.ok()) return covered.error().within(where_).as(ErrorCode::kCorrupt);
    return collection;
  }

  void add_sources(Contents& contents) {
    std::map<std::string, std::shared_ptr<const CheckedSource>> checked;
    for (auto& [name, file] : item_files_) {
      std::ranges::sort(file.records, {}, &CheckedRecord::offset);
      checked[name] = std::make_shared<CheckedSource>(
          file.source, std::move(file.records), crc32_extend);
    }
    std::vector<std::shared_ptr<const CheckedSource>> sources;
    for (const FileHolder& holder : holders_) {
      sources.push_back(checked.at(holder.file));
      contents.sources.push_back(sources.back());
    }
    contents.digests = std::make_shared<HolderDigests>(sources);
  }

  const std::string where_;
  const Metadata& metadata_;
  Files files_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, TensorId> tensor_of_;  // by the name of the entry
  std::vector<std::pair<TensorId, std::string>> ties_;
  std::map<Item, const Entry*> owner_of_;
  std::map<std::string, ItemFile> item_files_;
  std::vector<FileHolder> holders_;
  std::map<std::pair<std::string, HolderId>, HolderId> holder_ids_;
  std::vector<Piece> pieces_;
  std::vector<Leaf> leaves_;
  KeptTexts kept_;
  std::vector<std::string> simplified_;
  std::vector<std::string> left_out_;
};

}  // namespace

Result<std::shared_ptr<const Source>> Files::open(const std::string& name) {
  std::shared_ptr<const Source>& file = files_[name];
  if (file != nullptr) return file;
  auto opened = FileSource::open(env_, folder_ / name);
  if (!opened.ok() && is_missing(opened.error())) {
    return corrupt("{}: {} is missing, but the metadata names it",
                   (folder_ / kMetadataFile).native(), shown(name));
  }
  file = HOLDFAST_TRY(std::move(opened));
  return file;
}

Result<std::shared_ptr<const Source>> open_item(std::shared_ptr<const Source> file,
                                                const NamedItem& item) {
  const auto [name, offset, length] = item.item;
  if (length > file->size() || offset > file->size() - length) {
    return corrupt("{}: the item of {} has the bytes {} to {}; the file has {}",
                   file->name(), shown(item.entry), offset, offset + length,
                   file->size());
  }
  std::string where = fmt::format("{}: {}", file->name(), shown(item.entry));
  std::shared_ptr<const Source> slice =
      std::make_shared<SliceSource>(std::move(file), offset, length, std::move(where));
  return slice;
}

Result<OpenedFolder> open_folder(Env& env, const Path& folder,
                                 const Metadata& metadata) {
  return FolderOpener(env, folder, metadata).open();
}

}  // namespace dcp

bool is_dcp_folder(std::span<const std::string> names) {
  const auto any = [&](std::string_view suffix) {
    return std::ranges::any_of(
        names, [&](const std::string& name) { return name.ends_with(suffix); });
  };
  const bool metadata = std::ranges::find(names, dcp::kMetadataFile) != names.end();
  // The items may be lost. But another tool may also have left such a file in a folder of
  // safetensors files.
  return metadata && (any(dcp::kItemsSuffix) || !any(".safetensors"));
}

Result<Contents> open_dcp(Env& env, const Path& folder) {
  const dcp::Metadata metadata = HOLDFAST_TRY(dcp::read_metadata(env, folder));
  return HOLDFAST_TRY(dcp::open_folder(env, folder, metadata)).contents;
}

}  // namespace holdfast
