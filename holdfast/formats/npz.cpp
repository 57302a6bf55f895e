// Opens and writes NumPy's files.
#include "holdfast/formats/npz.h"

#include <algorithm>
#include <set>

#include "holdfast/archive/pickle_reader.h"
#include "holdfast/archive/zip_writer.h"
#include "holdfast/contents/left_out.h"
#include "holdfast/contents/side_metadata.h"
#include "holdfast/formats/npz_internal.h"
#include "holdfast/formats/zip_checked_source.h"

namespace holdfast {
namespace {

using npz::Array;
using npz::kArraySuffix;

constexpr std::string_view kNpyStart = "\x93NUMPY";
constexpr int64_t kMaxKeptBytes = int64_t{1} << 28;
constexpr int64_t kMaxNonePickle = 4096;
constexpr size_t kNpzChunk = size_t{4} << 20;

bool may_stand_for_none(std::string_view global) {
  return global == "numpy.core.multiarray._reconstruct" ||
         global == "numpy._core.multiarray._reconstruct" || global == "numpy.ndarray" ||
         global == "numpy.dtype";
}

// Whether the pickle of an object array is that of None.
bool is_none_array(const Pickle& pickle) {
  const auto* call = pickle[pickle.root].as<PickleNode::Call>();
  if (call == nullptr || call->state == kNoPickleId) return false;
  const auto* state = pickle[call->state].as<PickleNode::Tuple>();
  if (state == nullptr || state->items.size() != 5) return false;
  const auto* list = pickle[state->items[4]].as<PickleNode::List>();
  return list != nullptr && list->items.size() == 1 &&
         pickle[list->items[0]].as<Object::None>() != nullptr;
}

// Whether the object array in this record is None.
Result<bool> is_none(const Source& record, const NpyHeader& header) {
  const int64_t size = record.size() - header.bytes;
  if (header.shape.rank() != 0 || size > kMaxNonePickle) return false;
  const Bytes bytes = HOLDFAST_TRY(record.read_bytes(header.bytes, size));
  const Result<Pickle> pickle = read_pickle(
      bytes, {.where = record.name(), .allow_global = may_stand_for_none});
  return pickle.ok() && is_none_array(*pickle);
}

// Stored records are checked by the source of the file; decoding sources check
// themselves.
class FileDigests : public DigestCheck {
 public:
  explicit FileDigests(std::shared_ptr<const DigestCheck> file)
      : file_(std::move(file)) {}
  Result<void> check_record(HolderId holder, int64_t offset,
                            bool whole) const override {
    return holder == 0 ? file_->check_record(holder, offset, whole) : Result<void>();
  }

 private:
  // Shared with the source of the file.
  const std::shared_ptr<const DigestCheck> file_;
};

// Carries out open_archive().
class NpzOpener {
 public:
  NpzOpener(std::shared_ptr<const Source> file, ZipArchive archive)
      : file_(std::move(file)), archive_(std::move(archive)) {}

  Result<npz::Opened> open() && {
    for (size_t i = 0; i < archive_.entries().size(); ++i) HOLDFAST_TRY(add(i));
    RestoredTexts restored = HOLDFAST_TRY(restore_kept(texts_, tensors_, file_->name()));
    if (restored.objects.none() && !nones_.items.empty()) {
      restored.objects = Object(std::move(nones_));
    }
    const auto checked = checked_file(file_);
    HOLDFAST_TRY(add_sources(checked));
    auto collection = make_collection();
    if (!collection.ok()) {
      return collection.error().as(ErrorCode::kCorrupt).within(file_->name());
    }
    Contents contents{.collection = *std::move(collection),
                      .sources = std::move(sources_),
                      .objects = std::move(restored.objects),
                      .metadata = std::move(restored.metadata),
                      .digests = std::make_shared<FileDigests>(checked),
                      .left_out = std::move(left_out_)};
    return npz::Opened{.archive = std::move(archive_),
                       .contents = std::move(contents),
                       .arrays = std::move(arrays_)};
  }

 private:
  Result<void> add(size_t record) {
    const ZipEntry& entry = archive_.entries()[record];
    if (!entry.name.ends_with(kArraySuffix)) {
      return unsupported("{}: is no array; expected only records *.npy",
                         archive_.name_of_record(entry));
    }
    const std::string name =
        entry.name.substr(0, entry.name.size() - kArraySuffix.size());
    const auto source = archive_.open_record(entry);
    const Result<NpyHeader> header = read_npy_header(*source);
    if (name.starts_with(kKeptPrefix)) {
      return add_text(name, entry, HOLDFAST_TRY(header));
    }
    if (!header.ok()) {
      if (header.error().code() != ErrorCode::kUnsupported) return header.error();
      leave_out(name, why_of(header.error(), source->name()));
      return {};
    }
    if (header->objects) return add_objects(name, *source, *header);
    const HolderId holder = entry.deflated ? ++decoded_ : 0;
    arrays_.push_back({.record = record, .header = *header, .holder = holder});
    tensors_.push_back({.name = name, .dtype = header->dtype, .shape = header->shape});
    return {};
  }

  Result<void> add_objects(const std::string& name, const Source& record,
                           const NpyHeader& header) {
    if (HOLDFAST_TRY(is_none(record, header))) {
      nones_.items.emplace_back(Object(name), Object());
      return {};
    }
    leave_out(name,
              "is an array of Python objects, which only running its pickle could read; "
              "expected numbers");
    return {};
  }

  void leave_out(const std::string& name, std::string_view why) {
    left_out_.push_back(fmt::format("{}: {}", name, why));
  }

  Result<void> add_text(const std::string& name, const ZipEntry& entry,
                        const NpyHeader& header) {
    const Bytes bytes = HOLDFAST_TRY(archive_.read(entry, kMaxKeptBytes));
    texts_[name] = text_of(ByteView(bytes).subspan(static_cast<size_t>(header.bytes)));
    return {};
  }

  std::shared_ptr<const CheckedSource> checked_file(
      const std::shared_ptr<const Source>& file) const {
    std::vector<ZipEntry> stored;
    for (const ZipEntry& entry : archive_.entries()) {
      if (!entry.deflated) stored.push_back(entry);
    }
    return make_zip_checked_source(file, stored);
  }

  // One source for the file and one for each deflated array. Big-endian numbers are
  // swapped while they are read.
  Result<void> add_sources(std::shared_ptr<const Source> file) {
    std::vector<SwappedRange> swapped;
    for (const Array& array : arrays_) {
      if (array.holder != 0 || !array.header.big_endian) continue;
      const int64_t at = archive_.entries()[array.record].offset;
      swapped.push_back(range_of(array.header, at));
    }
    if (!swapped.empty()) {
      file = HOLDFAST_TRY(SwappingSource::create(std::move(file), std::move(swapped)));
    }
    sources_.push_back(std::move(file));
    for (const Array& array : arrays_) {
      if (array.holder == 0) continue;
      auto source = archive_.open_record(archive_.entries()[array.record]);
      if (array.header.big_endian) {
        source = HOLDFAST_TRY(
            SwappingSource::create(std::move(source), {range_of(array.header, 0)}));
      }
      sources_.push_back(std::move(source));
    }
    return {};
  }

  static SwappedRange range_of(const NpyHeader& header, int64_t offset) {
    return {.offset = offset + header.bytes,
            .bytes = header.shape.elements() * bytes_of(header.dtype),
            .width = npz::width_of(header.dtype)};
  }

  Result<Collection> make_collection() {
    std::vector<Holder> holders;
    for (const auto& source : sources_) {
      holders.push_back({.name = source->name(), .kind = HolderKind::kFile});
    }
    LayoutBuilder builder(tensors_, std::move(holders));
    for (TensorId t = 0; t < tensors_.size(); ++t) {
      const Array& array = arrays_[t];
      const int64_t at =
          array.holder == 0 ? archive_.entries()[array.record].offset : 0;
      builder.add(t, Box::whole(tensors_[t].shape), array.holder, array.header.map(at));
    }
    Layout layout = HOLDFAST_TRY(std::move(builder).build());
    return Collection::create(tensors_, std::move(layout));
  }

  std::shared_ptr<const Source> file_;
  ZipArchive archive_;
  KeptTexts texts_;
  Object::Dict nones_;
  HolderId decoded_ = 0;
  std::vector<Array> arrays_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> left_out_;
  std::vector<std::shared_ptr<const Source>> sources_;
};

// Chooses the names and dtypes under which tensors are stored. Names that a zip archive
// cannot have are replaced by numbers.
std::vector<StoredAs> choose_stored(const Contents& contents) {
  std::set<std::string, std::less<>> taken;
  for (const Tensor& tensor : contents.collection.tensors()) taken.insert(tensor.name);
  std::vector<StoredAs> stored;
  for (const Tensor& tensor : contents.collection.tensors()) {
    const bool plain = is_safe_zip_name(tensor.name + std::string(kArraySuffix)) &&
                       !tensor.name.starts_with(kKeptPrefix) &&
                       tensor.name.size() < 60000;
    std::string name = tensor.name;
    for (size_t n = stored.size(); !plain; ++n) {
      name = fmt::format("tensor-{}", n);
      if (taken.insert(name).second) break;
    }
    stored.push_back({.name = std::move(name),
                      .dtype = is_numpy_dtype(tensor.dtype)
                                   ? tensor.dtype
                                   : unsigned_like(tensor.dtype)});
  }
  return stored;
}

// Appends the header of an array and its elements to a ZipWriter or a Sink.
template <typename Target>
Result<void> append_array(Target& target, const Contents& contents, TensorId id,
                          const Bytes& header) {
  HOLDFAST_TRY(target.append(header));
  const int64_t bytes = contents.collection.tensor(id).bytes();
  Bytes buffer(std::min(kNpzChunk, static_cast<size_t>(bytes)));
  CanonicalStream stream(contents, id);
  for (int64_t left = bytes; left > 0;) {
    const ByteSpan part =
        ByteSpan(buffer).first(std::min(buffer.size(), static_cast<size_t>(left)));
    HOLDFAST_TRY(stream.read(part));
    HOLDFAST_TRY(target.append(part));
    left -= std::ssize(part);
  }
  return {};
}

Result<void> write_array(ZipWriter& zip, const Contents& contents, TensorId id,
                         const StoredAs& stored) {
  const Tensor& tensor = contents.collection.tensor(id);
  const Bytes header = write_npy_header(stored.dtype, tensor.shape);
  HOLDFAST_TRY(zip.begin(stored.name + std::string(kArraySuffix),
                         std::ssize(header) + tensor.bytes()));
  HOLDFAST_TRY(append_array(zip, contents, id, header));
  HOLDFAST_TRY(zip.end());
  return {};
}

}  // namespace

int64_t npz::width_of(Dtype dtype) { return bytes_of(dtype) / info(dtype).components; }

Bytes npz::stored_mask(const NpyHeader& header, Dtype dtype, ByteView mask) {
  Bytes bytes = copy_of(mask);
  if (!header.big_endian) return bytes;
  const auto width = static_cast<size_t>(width_of(dtype));
  for (size_t at = 0; at < bytes.size(); at += width) {
    std::ranges::reverse(ByteSpan(bytes).subspan(at, width));
  }
  return bytes;
}

Result<npz::Opened> npz::open_archive(std::shared_ptr<const Source> source) {
  ZipArchive archive = HOLDFAST_TRY(ZipArchive::open(source, kZipOptions));
  return NpzOpener(std::move(source), std::move(archive)).open();
}

bool is_npz_archive(std::span<const std::string> names) {
  return std::ranges::all_of(
      names, [](const std::string& name) { return name.ends_with(kArraySuffix); });
}

bool is_npy(ByteView head) { return text_of(head).starts_with(kNpyStart); }

Result<Contents> open_npz(std::shared_ptr<const Source> source) {
  npz::Opened opened = HOLDFAST_TRY(npz::open_archive(std::move(source)));
  return std::move(opened.contents);
}

Result<Contents> open_npy(std::shared_ptr<const Source> source) {
  const NpyHeader header = HOLDFAST_TRY(read_npy_header(*source));
  if (header.objects) {
    return unsupported("{}: is an array of Python objects; expected numbers",
                       source->name());
  }
  std::vector<Tensor> tensors{
      {.name = "tensor", .dtype = header.dtype, .shape = header.shape}};
  LayoutBuilder builder(tensors, {{.name = source->name(), .kind = HolderKind::kFile}});
  builder.add(0, Box::whole(header.shape), 0, header.map(0));
  Layout layout = HOLDFAST_TRY(std::move(builder).build().within(source->name()));
  if (header.big_endian) {
    source = HOLDFAST_TRY(SwappingSource::create(
        std::move(source), {{.offset = header.bytes,
                             .bytes = header.shape.elements() * bytes_of(header.dtype),
                             .width = npz::width_of(header.dtype)}}));
  }
  return Contents{
      .collection = HOLDFAST_TRY(Collection::create(std::move(tensors), layout)),
      .sources = {std::move(source)},
      .objects = {},
      .metadata = {}};
}

Result<void> write_npy(Sink& sink, const Contents& contents) {
  const auto tensors = contents.collection.tensors();
  if (tensors.size() != 1) {
    return unsupported(
        "a .npy file holds one array, but there are {} tensors; expected one, or a "
        ".npz "
        "file",
        tensors.size());
  }
  if (!is_numpy_dtype(tensors[0].dtype)) {
    return unsupported(
        "{}: has the dtype {}, which NumPy does not have; expected a .npz "
        "file",
        tensors[0].name, name_of(tensors[0].dtype));
  }
  return append_array(sink, contents, 0,
                      write_npy_header(tensors[0].dtype, tensors[0].shape));
}

Result<void> write_npz(Sink& sink, const Contents& contents) {
  const std::vector<StoredAs> stored = choose_stored(contents);
  const KeptTexts texts = HOLDFAST_TRY(keep_beside(contents, contents.objects, stored));
  ZipWriter zip(sink);
  for (TensorId t = 0; t < stored.size(); ++t) {
    HOLDFAST_TRY(write_array(zip, contents, t, stored[t]));
  }
  for (const auto& [key, text] : texts) {
    Bytes record = write_npy_header(
        Dtype::kU8, HOLDFAST_TRY(Shape::create(std::array{std::ssize(text)})));
    const ByteView bytes = bytes_of(text);
    record.insert(record.end(), bytes.begin(), bytes.end());
    HOLDFAST_TRY(zip.add(key + std::string(kArraySuffix), record));
  }
  return zip.finish();
}

}  // namespace holdfast
