// Finds the bytes of torch's views in a file, and makes contents of them.
#include <fmt/ranges.h>

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "holdfast/base/checked.h"
#include "holdfast/contents/checked_source.h"
#include "holdfast/formats/computed_views.h"
#include "holdfast/formats/torch_zip_internal.h"

namespace holdfast::torch_zip {
namespace {

// Computes where the elements of a view lie in the file, and checks that they lie
// inside the storage. The stride of a dimension with one element has no meaning: torch
// writes any number there.
Result<Map> map_of(const View& view, const std::string& where,
                   const StorageRecord& record) {
  const int64_t bytes = bytes_of(view.dtype);
  Map map = Map::dense(Box::whole(view.shape), bytes, record.offset);
  int64_t last = view.offset;  // the last element of the view
  bool fits = view.offset >= 0;
  for (int k = 0; k < view.shape.rank(); ++k) {
    const auto at = static_cast<size_t>(k);
    const int64_t stride = view.strides[at];
    if (stride < 0) {
      return corrupt("{}: {} has the stride {}; expected 0 or more", where, view.path,
                     stride);
    }
    if (view.shape[k] <= 1 || view.shape.elements() == 0) continue;
    const auto reach = checked_mul(stride, view.shape[k] - 1);
    const auto moved = reach ? checked_add(last, *reach) : std::nullopt;
    fits = fits && moved.has_value();
    last = moved.value_or(0);
    map.strides[at] = checked_mul(stride, bytes).value_or(0);
  }
  if (view.shape.elements() == 0) return map;
  if (!fits || last >= record.size / bytes) {
    return corrupt("{}: {} at element {} does not fit into its storage of {} bytes",
                   where, view.path, view.offset, record.size);
  }
  map.offset = record.offset + view.offset * bytes;
  return map;
}

Result<StorageRecord> find_record(const std::string& where, const FindStorage& find,
                                  const View& view) {
  std::optional<StorageRecord> record = find(view.key);
  if (!record) {
    return corrupt("{}: {} has storage {}, which is not in the file", where, view.path,
                   view.key);
  }
  if (record->size == view.storage_bytes) return *std::move(record);
  return corrupt("{}: {} has a storage of {} bytes, but {} has {}", where, view.path,
                 view.storage_bytes, record->name, record->size);
}

// Gives overlapping views different holders, and uses as few holders as possible: in
// the order of their first bytes, each view gets the holder that became free first.
// Returns the number of holders.
HolderId choose_holders(std::vector<Placed>& placed) {
  std::vector<Placed*> order;
  for (Placed& one : placed) order.push_back(&one);
  std::sort(order.begin(), order.end(), [](const Placed* a, const Placed* b) {
    return std::pair(a->range.first, a->range.last) <
           std::pair(b->range.first, b->range.last);
  });
  // The byte from which on a holder is free, and the holder.
  using Free = std::pair<int64_t, HolderId>;
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  HolderId count = 0;
  for (Placed* one : order) {
    if (one->range.first == one->range.last) continue;
    if (free.empty() || free.top().first > one->range.first) {
      one->holder = count++;
    } else {
      one->holder = free.top().second;
      free.pop();
    }
    free.emplace(one->range.last, one->holder);
  }
  return std::max<HolderId>(count, 1);
}

std::vector<Holder> name_holders(const Source& file, HolderId count) {
  std::vector<Holder> holders;
  for (HolderId i = 0; i < count; ++i) {
    const std::string more = i == 0 ? "" : fmt::format("#{}", i);
    holders.push_back({.name = file.name() + more, .kind = HolderKind::kFile});
  }
  return holders;
}

// Puts the computed tensors behind the stored ones, with a source of their own.
std::shared_ptr<const Source> make_computed(
    const std::shared_ptr<const Source>& file,
    const std::shared_ptr<const DigestCheck>& digests, PlacedViews& views) {
  std::vector<ComputedView> computed;
  int64_t end = 0;
  for (Placed& one : views.computed) {
    computed.push_back({.dtype = one.tensor.dtype,
                        .shape = one.tensor.shape,
                        .map = one.map,
                        .mask = std::move(one.mask)});
    one.map = Map::dense(Box::whole(one.tensor.shape), bytes_of(one.tensor.dtype), end);
    one.holder = views.holders;
    end += one.tensor.bytes();
    views.stored.push_back(std::move(one));
  }
  return make_computed_views(file, digests, std::move(computed));
}

}  // namespace

Result<PlacedViews> place_views(const std::string& where, const FindStorage& find,
                                std::vector<View> views) {
  PlacedViews all;
  std::unordered_map<std::string, Placed*> known;
  all.stored.reserve(views.size());  // `known` points into both
  all.computed.reserve(views.size());
  for (View& view : views) {
    const StorageRecord record = HOLDFAST_TRY(find_record(where, find, view));
    const Map map = HOLDFAST_TRY(map_of(view, where, record));
    const int64_t bytes = bytes_of(view.dtype);
    const auto identity =
        fmt::format("{} {} {} {} {}", name_of(view.dtype), to_string(view.shape),
                    map.offset, fmt::join(map.strides, " "), to_hex(view.mask));
    if (const auto found = known.find(identity); found != known.end()) {
      found->second->tensor.aliases.push_back(std::move(view.name));
      continue;
    }
    ByteRange range = range_of(map, view.shape, bytes);
    if (view.shape.elements() == 0) range = {map.offset, map.offset};
    const bool plain = view.mask.empty() && is_injective(map, view.shape, bytes);
    std::vector<Placed>& kind = plain ? all.stored : all.computed;
    kind.push_back(
        {.tensor = {.name = std::move(view.name),
                    .dtype = view.dtype,
                    .shape = view.shape},
         .map = map,
         .range = range,
         .mask = std::move(view.mask)});
    known.emplace(identity, &kind.back());
  }
  all.holders = choose_holders(all.stored);
  return all;
}

Result<Contents> contents_of_views(const std::shared_ptr<const Source>& source,
                                   const std::shared_ptr<const DigestCheck>& digests,
                                   PlacedViews views, Tree tree) {
  std::vector<Holder> holders = name_holders(*source, views.holders);
  std::vector<std::shared_ptr<const Source>> sources(views.holders, source);
  std::vector<HolderDigests::Part> parts(views.holders, {digests, 0});
  if (!views.computed.empty()) {
    sources.push_back(make_computed(source, digests, views));
    holders.push_back({.name = sources.back()->name(), .kind = HolderKind::kFile});
    parts.push_back({});  // this source itself checks the bytes that it computes from
  }
  std::vector<Tensor> tensors;
  for (Placed& one : views.stored) tensors.push_back(std::move(one.tensor));
  LayoutBuilder builder(tensors, std::move(holders));
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), views.stored[t].holder,
                views.stored[t].map);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build().within(source->name()));
  auto collection = Collection::create(std::move(tensors), std::move(layout));
  if (!collection.ok()) return collection.error().within(source->name());
  return Contents{.collection = *std::move(collection),
                  .sources = std::move(sources),
                  .objects = std::move(tree.objects),
                  .metadata = {},
                  .digests = std::make_shared<HolderDigests>(std::move(parts)),
                  .simplified = std::move(tree.simplified),
                  .left_out = std::move(tree.left_out)};
}

}  // namespace holdfast::torch_zip
