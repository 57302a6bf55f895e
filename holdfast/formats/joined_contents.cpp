#include "holdfast/formats/joined_contents.h"

#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/formats/safetensors_internal.h"

namespace holdfast {
namespace {

// Adds the items of `more` to a dict. A dict that both have is merged in the same way.
Result<void> merge_objects(Object& all, Object more, const std::string& where) {
  if (more.none() || all == more) return {};
  if (all.none()) {
    all = std::move(more);
    return {};
  }
  auto* into = std::get_if<Object::Dict>(&all.value());
  auto* from = std::get_if<Object::Dict>(&more.value());
  if (into == nullptr || from == nullptr) {
    return corrupt("{}: another file has a different value; expected the same", where);
  }
  for (auto& [key, value] : from->items) {
    const auto found = std::ranges::find_if(
        into->items, [&key = key](const auto& item) { return item.first == key; });
    const auto* name = key.as<std::string>();
    if (found == into->items.end()) {
      into->items.emplace_back(key, std::move(value));
    } else {
      HOLDFAST_TRY(merge_objects(found->second, std::move(value),
                                 where + ": " + (name ? shown(*name) : "a key")));
    }
  }
  return {};
}

void append_lines(std::vector<std::string>& all,
                  const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

Result<void> JoinedContents::add(Contents file) {
  const Layout& layout = file.collection.layout();
  const std::string where = file.sources.at(0)->name();
  HOLDFAST_TRY(merge_objects(objects_, std::move(file.objects), where));
  metadata_.merge(file.metadata);
  append_lines(simplified_, file.simplified);
  append_lines(left_out_, file.left_out);
  const auto first = static_cast<HolderId>(sources_.size());
  for (HolderId i = 0; i < file.sources.size(); ++i) {
    holders_.push_back(layout.holders()[i]);
    sources_.push_back(file.sources[i]);
    digests_.push_back({file.digests, i});
  }
  for (TensorId t = 0; t < file.collection.tensors().size(); ++t) {
    const Tensor& tensor = file.collection.tensor(t);
    for (const Slice& slice : layout.slices(t)) {
      pieces_.push_back({static_cast<TensorId>(tensors_.size()), slice.box,
                         first + layout.holder(slice.first),
                         layout.map(slice.first, bytes_of(tensor.dtype))});
    }
    tensors_.push_back(tensor);
  }
  return {};
}

Result<Contents> JoinedContents::take(const std::string& where) && {
  LayoutBuilder builder(tensors_, std::move(holders_));
  for (const Piece& piece : pieces_) {
    builder.add(piece.tensor, piece.box, piece.holder, piece.map);
  }
  Layout layout = HOLDFAST_TRY(as_corrupt(std::move(builder).build().within(where)));
  Collection collection = HOLDFAST_TRY(as_corrupt(
      Collection::create(std::move(tensors_), std::move(layout)).within(where)));
  return Contents{.collection = std::move(collection),
                  .sources = std::move(sources_),
                  .objects = std::move(objects_),
                  .metadata = std::move(metadata_),
                  .digests = std::make_shared<HolderDigests>(std::move(digests_)),
                  .simplified = std::move(simplified_),
                  .left_out = std::move(left_out_)};
}

}  // namespace holdfast
