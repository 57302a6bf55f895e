// Makes the contents of a file from its tree.
#include <algorithm>

#include "holdfast/contents/side_metadata.h"
#include "holdfast/contents/swapping_source.h"
#include "holdfast/hdf5/tree_internal.h"

namespace holdfast::hdf5 {
namespace {

// Bytes of the file that a dataset occupies.
struct Used {
  int64_t first, last;
  const Dataset* dataset;
};

Result<void> check_disjoint(const Tree& tree) {
  std::vector<Used> used;
  for (const auto& dataset : tree.datasets) {
    if (dataset->storage == Storage::kPlain) {
      used.push_back({dataset->offset, dataset->offset + dataset->bytes(), &*dataset});
    }
    for (const auto& [number, chunk] : dataset->chunks) {
      used.push_back({chunk.offset, chunk.offset + chunk.bytes, &*dataset});
    }
  }
  std::ranges::sort(used, {}, &Used::first);
  for (size_t i = 1; i < used.size(); ++i) {
    if (used[i].first >= used[i - 1].last) continue;
    return corrupt("{}: shares bytes {} to {} with {}", used[i].dataset->where,
                   used[i].first, std::min(used[i].last, used[i - 1].last),
                   used[i - 1].dataset == used[i].dataset ? "another chunk"
                                                          : used[i - 1].dataset->where);
  }
  return {};
}

// The file with its big-endian datasets swapped, at the same offsets.
Result<std::shared_ptr<const Source>> swapped(const File& file, const Tree& tree) {
  std::vector<SwappedRange> ranges;
  for (const auto& dataset : tree.datasets) {
    if (dataset->storage != Storage::kPlain || dataset->type.swapped == 0) continue;
    ranges.push_back({dataset->offset, dataset->bytes(), dataset->type.swapped});
  }
  if (ranges.empty()) return file.source();
  return std::shared_ptr<const Source>(
      HOLDFAST_TRY(SwappingSource::create(file.source(), std::move(ranges))));
}

// Takes the texts that Holdfast keeps in attributes of the root out of the attributes.
KeptTexts take_kept(std::vector<Attribute>& attributes) {
  KeptTexts texts;
  std::erase_if(attributes, [&](const Attribute& attribute) {
    const auto* text = attribute.value.as<std::string>();
    if (text == nullptr || !attribute.name.starts_with(kKeptPrefix)) return false;
    texts.emplace(attribute.name, *text);
    return true;
  });
  return texts;
}

Object objects_of(Tree& tree) {
  Object::Dict attributes, all;
  for (Attribute& attribute : tree.root_attributes) {
    attributes.items.emplace_back(Object(attribute.name), std::move(attribute.value));
  }
  if (!attributes.items.empty()) {
    tree.attributes.items.emplace(tree.attributes.items.begin(),
                                  Object(std::string("/")),
                                  Object(std::move(attributes)));
  }
  const auto add = [&](const char* key, Object::Dict dict) {
    if (dict.items.empty()) return;
    all.items.emplace_back(Object(std::string(key)), Object(std::move(dict)));
  };
  add("attributes", std::move(tree.attributes));
  add("values", std::move(tree.values));
  return all.items.empty() ? Object() : Object(std::move(all));
}

Result<Collection> collection_of(const std::string& name, const Tree& tree,
                                 DecodedSource& source) {
  LayoutBuilder builder(tree.tensors, {{.name = name.empty() ? "file" : name,
                                        .kind = HolderKind::kFile}});
  for (TensorId t = 0; t < tree.tensors.size(); ++t) {
    const auto& dataset = tree.datasets[t];
    const int64_t offset = dataset->storage == Storage::kPlain
                               ? dataset->offset
                               : HOLDFAST_TRY(source.add(dataset));
    builder.add(t, Box::whole(tree.tensors[t].shape), 0, offset);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  return Collection::create(tree.tensors, std::move(layout));
}

}  // namespace

Result<OpenedFile> open_file(std::shared_ptr<const Source> source) {
  const File file = HOLDFAST_TRY(File::open(source));
  Tree tree = HOLDFAST_TRY(read_tree(file));
  HOLDFAST_TRY(check_disjoint(tree));
  const auto decoded =
      std::make_shared<DecodedSource>(source, HOLDFAST_TRY(swapped(file, tree)));
  const KeptTexts kept = take_kept(tree.root_attributes);
  RestoredTexts restored = HOLDFAST_TRY(restore_kept(kept, tree.tensors, file.name()));
  auto collection = collection_of(file.name(), tree, *decoded).within(file.name());
  if (!collection.ok()) return collection.error().as(ErrorCode::kCorrupt);
  OpenedFile opened{.file = file,
                    .contents = {.collection = *std::move(collection),
                                 .sources = {decoded},
                                 .objects = std::move(restored.objects),
                                 .metadata = std::move(restored.metadata)}};
  if (opened.contents.objects.none()) opened.contents.objects = objects_of(tree);
  opened.contents.left_out = std::move(tree.left_out);
  opened.contents.hdf5 = std::move(tree.details);
  opened.datasets = std::move(tree.datasets);
  opened.decoded = decoded;
  return opened;
}

}  // namespace holdfast::hdf5
