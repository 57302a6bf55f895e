// Opens a TensorFlow checkpoint as contents.
#include "holdfast/tensorflow/tensor_bundle.h"

#include <algorithm>

#include "holdfast/base/json_text.h"
#include "holdfast/contents/checked_source.h"
#include "holdfast/contents/side_metadata.h"
#include "holdfast/contents/swapping_source.h"
#include "holdfast/tensorflow/bundle_index.h"
#include "holdfast/tensorflow/bundle_shards.h"
#include "holdfast/tensorflow/bundle_strings.h"

namespace holdfast {
namespace bundle {
namespace {

// A box of a tensor in a shard.
struct PlacedBox {
  TensorId tensor = 0;
  Box box{};
  HolderId holder = 0;
  const BundleEntry* entry = nullptr;
};

// Collects the tensors and strings of an index.
class BundleOpener {
 public:
  BundleOpener(Env& env, const BundleIndex& index)
      : index_(index), shards_(env, index) {}

  Result<Contents> open() {
    for (const IndexedEntry& entry : index_.entries) {
      if (entry.key().front() == kSliceKeyMark) continue;
      HOLDFAST_TRY(add_entry(entry));
    }
    HOLDFAST_TRY(check_slices_used());
    return make_contents();
  }

 private:
  const std::string& where() const { return index_.path.native(); }

  // Leaves the entry out if it is of a kind that cannot be read. Texts that Holdfast has
  // written itself say what the tensors mean, so they may not be missing.
  Result<void> add_entry(const IndexedEntry& entry) {
    slices_ += entry.entry.slices.size();
    const bool strings = entry.entry.type == kStringType;
    Result<void> added = strings ? add_strings(entry) : add_tensor(entry);
    const bool odd = !added.ok() && added.error().code() == ErrorCode::kUnsupported;
    if (!odd || entry.key().starts_with(kKeptPrefix)) return added;
    left_out_.push_back(
        fmt::format("{}: {}", entry.key(), added.error().message()));
    return {};
  }

  Result<void> add_tensor(const IndexedEntry& tensor) {
    if (!tensor.entry.odd_shape.empty()) {
      return unsupported("{}", tensor.entry.odd_shape);
    }
    const Dtype dtype = HOLDFAST_TRY(dtype_of(tensor.entry.type));
    const auto id = static_cast<TensorId>(tensors_.size());
    for (const StoredBox& stored :
         HOLDFAST_TRY(boxes_of(index_, tensor).within(where()))) {
      HOLDFAST_TRY(add_box(id, dtype, stored));
    }
    tensors_.push_back(
        {.name = tensor.key(), .dtype = dtype, .shape = tensor.entry.shape});
    return {};
  }

  Result<void> add_box(TensorId tensor, Dtype dtype, const StoredBox& stored) {
    const BundleEntry& entry = stored.entry->entry;
    const int64_t expected = stored.box.elements() * bytes_of(dtype);
    if (entry.size != expected) {
      return corrupt("{}: {} has {} bytes; expected {}", where(),
                     shown(stored.entry->key()), entry.size, expected);
    }
    const HolderId holder = HOLDFAST_TRY(shards_.open_for(*stored.entry));
    boxes_.push_back({tensor, stored.box, holder, &entry});
    return {};
  }

  Result<void> add_strings(const IndexedEntry& at) {
    if (!at.entry.odd_shape.empty()) return unsupported("{}", at.entry.odd_shape);
    if (!at.entry.slices.empty()) {
      return unsupported("is a partitioned string tensor; expected a whole one");
    }
    const Bytes bytes = HOLDFAST_TRY(shards_.read_strings(at));
    const DecodedStrings decoded = HOLDFAST_TRY(shards_.decode(at, bytes));
    if (at.key().starts_with(kKeptPrefix) && at.entry.shape.rank() == 0) {
      kept_[at.key()] = std::string(text_of(decoded.strings.front()));
      return {};
    }
    strings_.items.emplace_back(Object(at.key()),
                                object_of({at.entry.shape, decoded.strings}));
    return {};
  }

  // A slice that no tensor names would be lost without a word.
  Result<void> check_slices_used() const {
    const auto all = std::ranges::count_if(
        index_.entries,
        [](const IndexedEntry& entry) { return entry.key().front() == kSliceKeyMark; });
    if (static_cast<size_t>(all) == slices_) return {};
    return corrupt("{}: has {} slices, but its tensors name {}", where(), all, slices_);
  }

  Result<Collection> make_collection(std::vector<Tensor> tensors) const {
    LayoutBuilder builder(tensors, shards_.holders());
    for (const PlacedBox& placed : boxes_) {
      builder.add(placed.tensor, placed.box, placed.holder, placed.entry->offset);
    }
    Layout layout = HOLDFAST_TRY(std::move(builder).build());
    return Collection::create(std::move(tensors), std::move(layout));
  }

  // The records and the big-endian numbers of one shard.
  std::vector<CheckedRecord> records_of(HolderId holder) const {
    std::vector<CheckedRecord> records;
    for (const PlacedBox& placed : boxes_) {
      if (placed.holder != holder || placed.entry->size == 0) continue;
      records.push_back({.name = tensors_[placed.tensor].name,
                         .offset = placed.entry->offset,
                         .size = placed.entry->size,
                         .crc = placed.entry->crc});
    }
    std::ranges::sort(records, {}, &CheckedRecord::offset);
    return records;
  }

  std::vector<SwappedRange> swapped_in(HolderId holder) const {
    std::vector<SwappedRange> ranges;
    for (const PlacedBox& placed : boxes_) {
      const DtypeInfo& of = info(tensors_[placed.tensor].dtype);
      const int64_t width = of.bytes / of.components;
      if (placed.holder != holder || width == 1) continue;
      ranges.push_back({placed.entry->offset, placed.entry->size, width});
    }
    return ranges;
  }

  // Makes the sources of the contents, which check and swap what is read.
  Result<void> add_sources(Contents& contents) const {
    std::vector<std::shared_ptr<const CheckedSource>> checked;
    for (HolderId h = 0; h < shards_.sources().size(); ++h) {
      checked.push_back(std::make_shared<CheckedSource>(shards_.sources()[h],
                                                        records_of(h), crc32c_extend));
      if (!index_.header.big_endian) {
        contents.sources.push_back(checked.back());
        continue;
      }
      contents.sources.push_back(
          HOLDFAST_TRY(SwappingSource::create(checked.back(), swapped_in(h))));
    }
    contents.digests = std::make_shared<HolderDigests>(std::move(checked));
    return {};
  }

  Result<Contents> make_contents() {
    RestoredTexts restored = HOLDFAST_TRY(restore_kept(kept_, tensors_, where()));
    const Result<Collection> collection = make_collection(tensors_);
    if (!collection.ok()) {
      return collection.error().within(where()).as(ErrorCode::kCorrupt);
    }
    Object objects = std::move(restored.objects);
    if (objects.none() && !strings_.items.empty())
      objects = Object(std::move(strings_));
    Contents contents{.collection = *collection,
                      .sources = {},
                      .objects = std::move(objects),
                      .metadata = std::move(restored.metadata),
                      .left_out = std::move(left_out_)};
    HOLDFAST_TRY(add_sources(contents));
    return contents;
  }

  const BundleIndex& index_;
  Shards shards_;
  std::vector<Tensor> tensors_;
  std::vector<PlacedBox> boxes_;
  size_t slices_ = 0;  // how many slices the tensors name
  std::vector<std::string> left_out_;
  KeptTexts kept_;
  Object::Dict strings_;
};

}  // namespace

Result<Contents> open_indexed(Env& env, const BundleIndex& index) {
  return BundleOpener(env, index).open();
}

}  // namespace bundle

bool is_tensor_bundle_index(ByteView tail) {
  return tail.size() == 8 && load_little_endian<uint64_t>(tail) == bundle::kTableMagic;
}

Result<Contents> open_tensor_bundle(Env& env, const Path& path) {
  const Path at = HOLDFAST_TRY(bundle::find_index(env, path));
  return bundle::open_indexed(env, HOLDFAST_TRY(bundle::read_index(env, at)));
}

}  // namespace holdfast
