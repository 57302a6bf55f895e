// Opens torch's zip files: checks the archive and finds the bytes of each tensor in it.
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>

#include "holdfast/base/checked.h"
#include "holdfast/formats/torch_zip.h"
#include "holdfast/formats/torch_zip_internal.h"
#include "holdfast/formats/zip_checked_source.h"
#include "holdfast/archive/zip_reader.h"

namespace holdfast {
namespace {

using torch_zip::OpenedArchive;
using torch_zip::Placed;
using torch_zip::Tree;
using torch_zip::View;

constexpr std::string_view kPickleName = "/data.pkl";
constexpr int64_t kMaxPickleBytes = int64_t{1} << 28;
constexpr int64_t kMaxNoteBytes = 4096;
// The newest version of the format that torch's own reader accepts.
constexpr int kMaxVersion = 10;

// The first bytes of a file that torch.save wrote before it wrote zip files: a pickle
// of a magic number.
constexpr std::string_view kLegacyMagic =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

// Finds the only folder of the archive, the one that has data.pkl. torch takes the
// folder of the first entry in the directory, so that entry must be in the same folder.
Result<std::string> find_folder(const ZipArchive& archive) {
  const std::string& file = archive.source().name();
  std::string folder;
  for (const ZipEntry& entry : archive.entries()) {
    const std::string_view top =
        std::string_view(entry.name).substr(0, entry.name.find('/'));
    if (entry.name.size() != top.size() + kPickleName.size() ||
        !entry.name.ends_with(kPickleName)) {
      continue;
    }
    if (!folder.empty()) {
      return corrupt("{}: both {} and {} have a data.pkl", file, folder, top);
    }
    folder = top;
  }
  if (folder.empty())
    return unsupported("{}: is a zip file, but not one of torch", file);
  const std::string& first = archive.first_listed();
  if (!first.starts_with(folder + "/")) {
    return corrupt("{}: lists {} first, but {} has the data.pkl", file, first, folder);
  }
  return folder;
}

// Reads a small record as text. Returns an empty text if the record is not there.
Result<std::string> read_small_record(const ZipArchive& archive,
                                      const std::string& name) {
  const ZipEntry* entry = archive.find(name);
  if (entry == nullptr) return std::string();
  return std::string(text_of(HOLDFAST_TRY(archive.read(*entry, kMaxNoteBytes))));
}

Result<void> check_byte_order_and_version(const ZipArchive& archive,
                                          const std::string& folder) {
  const std::string& file = archive.source().name();
  // Files of torch before 2.1 have no byteorder record. In practice they are
  // little-endian.
  const auto order = HOLDFAST_TRY(read_small_record(archive, folder + "/byteorder"));
  if (!order.empty() && order != "little") {
    return unsupported("{}: byte order is \"{}\"; expected little", file, order);
  }
  const auto version = HOLDFAST_TRY(read_small_record(archive, folder + "/version"));
  const int number = std::atoi(version.c_str());
  if (number < 1 || number > kMaxVersion) {
    return unsupported("{}: version \"{}\" of the format; expected 1 to {}", file,
                       std::string_view(version).substr(0, version.find('\n')),
                       kMaxVersion);
  }
  return {};
}

// Computes where the elements of a view lie in the file, and checks that they lie
// inside the storage. The stride of a dimension with one element has no meaning: torch
// writes any number there.
Result<Map> map_of(const View& view, const std::string& where, const ZipEntry& record) {
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
    if (stride == 0) {
      return unsupported("{}: {} is an expanded view (stride 0)", where, view.path);
    }
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
  if (!is_injective(map, view.shape, bytes)) {
    return unsupported("{}: {} is a view whose elements overlap in memory; expected one of its own memory", where, view.path);
  }
  return map;
}

Result<std::vector<Placed>> place_views(const ZipArchive& archive,
                                        const std::string& folder,
                                        std::vector<View> views) {
  const std::string& where = archive.source().name();
  std::vector<Placed> placed;
  std::unordered_map<std::string, size_t> known;
  for (View& view : views) {
    const ZipEntry* record = archive.find(folder + "/data/" + view.key);
    if (record == nullptr) {
      return corrupt("{}: {} has storage {}, which is not in the file", where,
                     view.path, view.key);
    }
    if (record->size != view.storage_bytes) {
      return corrupt("{}: {} has a storage of {} bytes, but {} has {}", where,
                     view.path, view.storage_bytes, record->name, record->size);
    }
    const Map map = HOLDFAST_TRY(map_of(view, where, *record));
    const auto identity =
        fmt::format("{} {} {} {}", name_of(view.dtype), to_string(view.shape),
                    map.offset, fmt::join(map.strides, " "));
    const auto [found, is_new] = known.emplace(identity, placed.size());
    if (!is_new) {
      placed[found->second].tensor.aliases.push_back(std::move(view.name));
      continue;
    }
    ByteRange range = range_of(map, view.shape, bytes_of(view.dtype));
    if (view.shape.elements() == 0) range = {map.offset, map.offset};
    placed.push_back(
        {{.name = std::move(view.name), .dtype = view.dtype, .shape = view.shape},
         map,
         range});
  }
  return placed;
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

Result<Contents> make_contents(std::shared_ptr<const CheckedSource> source,
                               OpenedArchive opened) {
  std::vector<Holder> holders;
  for (HolderId i = 0; i < opened.holders; ++i) {
    const std::string more = i == 0 ? "" : fmt::format("#{}", i);
    holders.push_back({.name = source->name() + more, .kind = HolderKind::kFile});
  }
  std::vector<Tensor> tensors;
  for (Placed& one : opened.placed) tensors.push_back(std::move(one.tensor));
  LayoutBuilder builder(tensors, std::move(holders));
  for (TensorId t = 0; t < tensors.size(); ++t) {
    builder.add(t, Box::whole(tensors[t].shape), opened.placed[t].holder,
                opened.placed[t].map);
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build().within(source->name()));
  auto collection = Collection::create(std::move(tensors), std::move(layout));
  if (!collection.ok()) return collection.error().within(source->name());
  return Contents{.collection = *std::move(collection),
                  .sources = {opened.holders, source},
                  .objects = std::move(opened.objects),
                  .metadata = {},
                  .digests = source,
                  .simplified = std::move(opened.simplified)};
}

}  // namespace

namespace torch_zip {

Result<void> refuse_legacy(const Source& source) {
  const auto count = static_cast<int64_t>(kLegacyMagic.size());
  if (source.size() < count) return {};
  if (text_of(HOLDFAST_TRY(source.read_bytes(0, count))) != kLegacyMagic) return {};
  return unsupported(
      "{}: is in the format before torch 1.6; expected a file that torch >= 1.6 saved "
      "again",
      source.name());
}

// A TorchScript file has constants.pkl beside data.pkl. This check must come before
// ZipArchive::open(), which would refuse the compressed code in it with a less helpful
// error.
Result<void> refuse_script(const Source& source) {
  for (const std::string& name : HOLDFAST_TRY(list_zip(source))) {
    if (!name.ends_with("/constants.pkl")) continue;
    return unsupported(
        "{}: is a TorchScript program (torch.jit.save); expected a file of torch.save",
        source.name());
  }
  return {};
}

Result<OpenedArchive> open_archive(const std::shared_ptr<const Source>& source) {
  HOLDFAST_TRY(refuse_legacy(*source));
  HOLDFAST_TRY(refuse_script(*source));
  const ZipArchive archive = HOLDFAST_TRY(ZipArchive::open(source, kZipOptions));
  const std::string folder = HOLDFAST_TRY(find_folder(archive));
  HOLDFAST_TRY(check_byte_order_and_version(archive, folder));
  const ZipEntry& entry = *archive.find(folder + std::string(kPickleName));
  const Bytes bytes = HOLDFAST_TRY(archive.read(entry, kMaxPickleBytes));
  const std::string where = fmt::format("{}: {}", source->name(), entry.name);
  const Pickle pickle =
      HOLDFAST_TRY(read_pickle(bytes, {.where = where, .allow_global = may_occur}));
  Tree tree = HOLDFAST_TRY(read_tree(pickle, where, bytes.size()));
  OpenedArchive opened{.entries = archive.entries(),
                       .objects = std::move(tree.objects),
                       .simplified = std::move(tree.simplified)};
  opened.placed = HOLDFAST_TRY(place_views(archive, folder, std::move(tree.views)));
  opened.holders = choose_holders(opened.placed);
  return opened;
}

}  // namespace torch_zip

bool is_torch_archive(std::span<const std::string> names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    const size_t slash = name.find('/');
    return slash != name.npos && std::string_view(name).substr(slash) == kPickleName;
  });
}

bool is_legacy_torch(ByteView head) { return text_of(head).starts_with(kLegacyMagic); }

Result<Contents> open_torch(std::shared_ptr<const Source> source) {
  OpenedArchive opened = HOLDFAST_TRY(torch_zip::open_archive(source));
  auto checked = make_zip_checked_source(std::move(source), opened.entries);
  return make_contents(std::move(checked), std::move(opened));
}

}  // namespace holdfast
