#include "holdfast/checkpoint/fill.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "holdfast/state/box_stream.h"
#include "holdfast/state/plan.h"
#include "holdfast/store/device_upload.h"

namespace holdfast {
namespace {

constexpr int64_t kWorthARead = int64_t{64} << 10;  // bytes: shorter rows come with
                                                    // their chunks, which is faster
constexpr double kMostWaste = 1.05;
constexpr size_t kNamed = 5;  // tensors named in a message

// Part of a piece of a file goes to a piece of this rank's memory.
struct Delivery {
  TensorId tensor;  // of the step
  Box stored;       // the piece in the file
  int64_t offset;   // of it in the file
  int64_t element;  // bytes
  Box box;          // the part that is wanted
  const LocalPiece* to;

  int64_t stored_bytes() const { return stored.elements() * element; }
  int64_t bytes() const { return box.elements() * element; }
  bool whole() const { return box == stored; }
  // The wanted rows, as they lie in the file.
  StridedCopy rows() const {
    return plan_copy(Map::dense(stored, element, offset).narrowed(stored, box),
                     Map::dense(box, element), box.shape(), element);
  }
};

// First and last byte of the file that is wanted.
ByteRange range_of_rows(const Delivery& delivery) {
  const Map map = Map::dense(delivery.stored, delivery.element, delivery.offset);
  return range_of(map.narrowed(delivery.stored, delivery.box), delivery.box.shape(),
                  delivery.element);
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamed) text += fmt::format(" and {} more", names.size() - kNamed);
  return text;
}

// The tensor of the step under the name, or else a tie, of one here.
std::optional<TensorId> find_in(const StepFiles& step, const Tensor& tensor) {
  std::optional<TensorId> found = step.collection.find(tensor.name);
  for (const std::string& tie : tensor.ties) {
    if (!found.has_value()) found = step.collection.find(tie);
  }
  return found;
}

// A tie of `tensor` that has values of its own in the step.
std::optional<std::string> untied_in(const StepFiles& step, const Tensor& tensor,
                                     TensorId as) {
  for (const std::string& tie : tensor.ties) {
    const std::optional<TensorId> other = step.collection.find(tie);
    if (other.has_value() && step.seals[*other] != step.seals[as]) return tie;
  }
  return std::nullopt;
}

// Every tensor that is asked for is there, with the same dtype and shape, and what is
// one tensor here has one value there.
Result<void> check_tensors(const StepFiles& step, const LocalState& into) {
  std::vector<std::string> missing, different;
  std::vector<bool> seen(into.collection->tensors().size());
  for (const LocalPiece& piece : into.pieces) {
    if (seen[piece.tensor]) continue;
    seen[piece.tensor] = true;
    const Tensor& want = into.collection->tensor(piece.tensor);
    const std::optional<TensorId> found = find_in(step, want);
    if (!found.has_value()) {
      missing.push_back(want.name);
      continue;
    }
    const Tensor& have = step.collection.tensor(*found);
    if (have.dtype == want.dtype && have.shape == want.shape) {
      if (const auto tie = untied_in(step, want, *found)) {
        different.push_back(fmt::format("{} and {} are tied here and have two values",
                                        want.name, *tie));
      }
      continue;
    }
    different.push_back(fmt::format("{} is {} {}, want {} {}", want.name,
                                    name_of(have.dtype), to_string(have.shape),
                                    name_of(want.dtype), to_string(want.shape)));
  }
  if (missing.empty() && different.empty()) return {};
  std::string what;
  if (!missing.empty()) what = "not in it: " + join(missing);
  if (!different.empty()) {
    what += (what.empty() ? "" : "; ") + std::string("different: ") + join(different);
  }
  return invalid("{}: {}", step.folder.native(), what);
}

// What this rank wants, as a collection. Its holders are places in its memory: tensors
// that are one in the step and several here (tied then, not any more) have one each.
struct Wanted {
  Collection collection;
  std::vector<const LocalPiece*> pieces;  // by PieceId
};

// The place of each tensor of `into` among those that are the same one in the step.
std::vector<HolderId> places_of(const StepFiles& step, const LocalState& into) {
  std::unordered_map<TensorId, HolderId> seen;
  std::vector<HolderId> places;
  for (const Tensor& tensor : into.collection->tensors()) {
    const std::optional<TensorId> id = find_in(step, tensor);
    places.push_back(id.has_value() ? seen[*id]++ : 0);
  }
  return places;
}

Result<Wanted> wanted_of(const StepFiles& step, const LocalState& into) {
  std::vector<Tensor> tensors(step.collection.tensors().begin(),
                              step.collection.tensors().end());
  const std::vector<HolderId> places = places_of(step, into);
  const HolderId most =
      places.empty() ? 0 : *std::max_element(places.begin(), places.end());
  std::vector<Holder> holders;
  for (HolderId h = 0; h <= most; ++h) {
    holders.push_back({.name = fmt::format("place {} of this rank", h)});
  }
  LayoutBuilder builder(tensors, std::move(holders));
  std::map<std::tuple<TensorId, HolderId, Box>, const LocalPiece*> local;
  std::vector<int64_t> offsets(most + 1);
  for (const LocalPiece& piece : into.pieces) {
    const Tensor& tensor = into.collection->tensor(piece.tensor);
    const TensorId id = *find_in(step, tensor);
    const HolderId place = places[piece.tensor];
    builder.add(id, piece.box, place, offsets[place]);
    offsets[place] += piece.box.elements() * bytes_of(tensor.dtype);
    local[{id, place, piece.box}] = &piece;
  }
  Layout layout = HOLDFAST_TRY(std::move(builder).build());
  Wanted wanted{.collection = HOLDFAST_TRY(
                    Collection::create(std::move(tensors), std::move(layout))),
                .pieces = {}};
  const Layout& built = wanted.collection.layout();
  wanted.pieces.resize(built.piece_count());
  for (TensorId t = 0; t < built.tensor_count(); ++t) {
    for (const Slice& slice : built.slices(t)) {
      for (PieceId p = slice.first; p < slice.last; ++p) {
        wanted.pieces[p] = local.at({t, built.holder(p), slice.box});
      }
    }
  }
  return wanted;
}

// What comes out of each file, in order of its bytes.
using Deliveries = std::vector<std::vector<Delivery>>;

Result<Deliveries> deliveries_of(const StepFiles& step, const Wanted& wanted) {
  Topology topology = Topology::uniform(1);
  const Plan plan = HOLDFAST_TRY(holdfast::plan(step.collection, wanted.collection,
                                                topology, {.forwarding = false}));
  const Layout& source = step.collection.layout();
  Deliveries deliveries(step.files.size());
  for (const Move& move : plan.moves) {
    const int64_t element = bytes_of(step.collection.tensor(move.tensor).dtype);
    deliveries[source.holder(move.from)].push_back(
        {.tensor = move.tensor,
         .stored = source.box(move.from),
         .offset = source.map(move.from, element).offset,
         .element = element,
         .box = plan.boxes[move.box],
         .to = wanted.pieces[move.to]});
  }
  for (std::vector<Delivery>& of_file : deliveries) {
    std::sort(of_file.begin(), of_file.end(), [](const Delivery& a, const Delivery& b) {
      return std::tie(a.offset, a.box) < std::tie(b.offset, b.box);
    });
  }
  return deliveries;
}

// Fills from one file.
class FileFiller {
 public:
  // `upload` takes what goes to devices.
  FileFiller(Env& env, const StepFiles& step, const ShardFile& file,
             DeviceUpload* upload)
      : env_(env),
        step_(step),
        file_(file),
        path_(step.folder / file.name),
        upload_(upload) {}

  Result<void> run(std::vector<Delivery> deliveries, const ReadOptions& options,
                   Filled& filled) {
    std::vector<Delivery> rows;
    for (Delivery& delivery : deliveries) {
      filled.needed += delivery.bytes();
      (better_by_rows(delivery) ? rows : by_chunk_).push_back(std::move(delivery));
    }
    HOLDFAST_TRY(read_by_chunk(options, filled));
    return read_rows(rows, filled);
  }

 private:
  bool better_by_rows(const Delivery& delivery) const {
    if (!file_.packed.empty() || delivery.to->device != nullptr) return false;
    const StridedCopy rows = delivery.rows();
    if (rows.loops == 0 || rows.run < kWorthARead) return false;
    int64_t touched = 0;
    const ByteRange range = range_of_rows(delivery);
    const ChunkRange chunks = chunks_of(file_, range.first, range.last);
    for (size_t i = chunks.first; i < chunks.last; ++i)
      touched += file_.chunks[i].bytes;
    return static_cast<double>(touched) >
           kMostWaste * static_cast<double>(delivery.bytes());
  }

  Result<void> read_by_chunk(const ReadOptions& options, Filled& filled) {
    std::vector<bool> touched(file_.chunks.size());
    // The header too, so that no damage of a shard goes by.
    if (!by_chunk_.empty() && !touched.empty()) touched[0] = true;
    for (const Delivery& delivery : by_chunk_) {
      const ByteRange range = range_of_rows(delivery);
      const ChunkRange chunks = chunks_of(file_, range.first, range.last);
      std::fill(touched.begin() + static_cast<std::ptrdiff_t>(chunks.first),
                touched.begin() + static_cast<std::ptrdiff_t>(chunks.last), true);
    }
    std::vector<size_t> wanted;
    for (size_t i = 0; i < touched.size(); ++i) {
      if (!touched[i]) continue;
      wanted.push_back(i);
      filled.read += place_of(file_, i).bytes;
    }
    if (wanted.empty()) return {};
    return read_chunks(
        env_, path_, file_, wanted,
        [this](const FoundChunk& found) { return deliver(found); }, options);
  }

  // From several threads at once: chunks are disjoint, and so is where they go.
  Result<void> deliver(const FoundChunk& found) const {
    HOLDFAST_TRY(check_chunk(path_, file_, found));
    const Chunk& chunk = file_.chunks[found.number];
    auto next = std::partition_point(
        by_chunk_.begin(), by_chunk_.end(), [&](const Delivery& delivery) {
          return delivery.offset + delivery.stored_bytes() <= chunk.offset;
        });
    for (; next != by_chunk_.end() && next->offset < chunk.offset + chunk.bytes;
         ++next) {
      HOLDFAST_TRY(deliver_part(*next, chunk, found.bytes));
    }
    return {};
  }

  Result<void> deliver_part(const Delivery& delivery, const Chunk& chunk,
                            ByteView bytes) const {
    const int64_t first = std::max(chunk.offset, delivery.offset);
    const int64_t last =
        std::min(chunk.offset + chunk.bytes, delivery.offset + delivery.stored_bytes());
    const ByteView window = bytes.subspan(static_cast<size_t>(first - chunk.offset),
                                          static_cast<size_t>(last - first));
    const int64_t at = first - delivery.offset;  // in the piece's stream
    const LocalPiece& to = *delivery.to;
    if (delivery.whole()) return put(delivery, delivery.box, at, window);
    const int64_t end = last - delivery.offset;
    if (at % delivery.element != 0 || end % delivery.element != 0) {
      return corrupt("{}: chunk at byte {} cuts an element", path_.native(),
                     chunk.offset);
    }
    const Map stream = Map::dense(delivery.stored, delivery.element, -at);
    for (const Box& part :
         flat_range(delivery.stored, at / delivery.element, end / delivery.element)) {
      const std::optional<Box> common = intersect(part, delivery.box);
      if (!common.has_value()) continue;
      const Map from = stream.narrowed(delivery.stored, *common);
      if (to.device != nullptr) {
        HOLDFAST_TRY(put_part(delivery, *common, from, window));
        continue;
      }
      run_copy(plan_copy(from, to.map.narrowed(to.box, *common), common->shape(),
                         delivery.element),
               window, to.memory);
    }
    return {};
  }

  // A window of the stream of `box`, into its place.
  Result<void> put(const Delivery& delivery, const Box& box, int64_t at,
                   ByteView window) const {
    const LocalPiece& to = *delivery.to;
    const BoxMemory place{.box = box,
                          .element_bytes = delivery.element,
                          .map = to.map.narrowed(to.box, box)};
    if (to.device != nullptr) {
      return upload_->put(*to.device, place, to.memory, at, window);
    }
    scatter(place, to.memory, at, window);
    return {};
  }

  // A box that lies scattered in the window, to a device.
  Result<void> put_part(const Delivery& delivery, const Box& box, const Map& from,
                        ByteView window) const {
    Bytes dense(static_cast<size_t>(box.elements() * delivery.element));
    run_copy(plan_copy(from, Map::dense(box, delivery.element), box.shape(),
                       delivery.element),
             window, dense);
    return put(delivery, box, 0, dense);
  }

  Result<void> read_rows(const std::vector<Delivery>& deliveries, Filled& filled) {
    if (deliveries.empty()) return {};
    const auto source = HOLDFAST_TRY(FileSource::open(env_, path_));
    for (const Delivery& delivery : deliveries) {
      HOLDFAST_TRY(read_rows_of(*source, delivery));
      filled.read += delivery.bytes();
      const Tensor& tensor = step_.collection.tensor(delivery.tensor);
      const LocalPiece& to = *delivery.to;
      filled.by_range.push_back(
          {.tensor = delivery.tensor,
           .box = delivery.box,
           .seal = seal_box(tensor.shape, tensor.dtype, delivery.box,
                            to.map.narrowed(to.box, delivery.box), to.memory)});
    }
    return {};
  }

  // One read a row: the part of the box that is contiguous in the file.
  Result<void> read_rows_of(const Source& source, const Delivery& delivery) {
    const int64_t row = delivery.rows().run / delivery.element;  // in elements
    const Map stored = Map::dense(delivery.stored, delivery.element, delivery.offset);
    const LocalPiece& to = *delivery.to;
    Bytes buffer(static_cast<size_t>(row * delivery.element));
    for (int64_t at = 0; at < delivery.box.elements(); at += row) {
      const std::vector<Box> parts = flat_range(delivery.box, at, at + row);
      HOLDFAST_TRY(
          source.read(stored.offset_of(delivery.stored, parts.front()), buffer));
      scatter_row(delivery, at, to, buffer);
    }
    return {};
  }

  static void scatter_row(const Delivery& delivery, int64_t at, const LocalPiece& to,
                          ByteView row) {
    scatter({.box = delivery.box,
             .element_bytes = delivery.element,
             .map = to.map.narrowed(to.box, delivery.box)},
            to.memory, at * delivery.element, row);
  }

  Env& env_;
  const StepFiles& step_;
  const ShardFile& file_;
  const Path path_;
  DeviceUpload* const upload_;
  std::vector<Delivery> by_chunk_;
};

// Blocks through which the pieces on devices are filled; none if there are none.
struct Uploads {
  explicit Uploads(const LocalState& into) {
    for (const LocalPiece& piece : into.pieces) {
      if (piece.device == nullptr || ring != nullptr) continue;
      ring = std::make_unique<StagingRing>(
          RingOptions{.bytes = int64_t{128} << 20,
                      .block = int64_t{8} << 20,
                      .pinner = const_cast<Device*>(piece.device)});
      upload = std::make_unique<DeviceUpload>(*ring);
    }
  }
  Result<void> finish() {
    return upload == nullptr ? Result<void>() : upload->finish();
  }

  std::unique_ptr<StagingRing> ring;
  std::unique_ptr<DeviceUpload> upload;
};

}  // namespace

Result<Filled> fill(Env& env, const StepFiles& step, const LocalState& into,
                    const ReadOptions& options) {
  HOLDFAST_TRY(into.check());
  HOLDFAST_TRY(check_tensors(step, into));
  const Wanted wanted = HOLDFAST_TRY(wanted_of(step, into));
  Deliveries deliveries = HOLDFAST_TRY(deliveries_of(step, wanted));
  Filled filled;
  Uploads uploads(into);
  for (size_t f = 0; f < step.files.size(); ++f) {
    if (deliveries[f].empty()) continue;
    FileFiller filler(env, step, step.files[f], uploads.upload.get());
    HOLDFAST_TRY(filler.run(std::move(deliveries[f]), options, filled));
  }
  HOLDFAST_TRY(uploads.finish());
  return filled;
}

std::vector<std::string> unused_tensors(const StepFiles& step, const LocalState& into) {
  std::vector<bool> used(step.collection.tensors().size());
  for (const Tensor& tensor : into.collection->tensors()) {
    if (const auto found = find_in(step, tensor)) used[*found] = true;
    for (const std::string& tie : tensor.ties) {
      if (const auto found = step.collection.find(tie)) used[*found] = true;
    }
  }
  std::vector<std::string> names;
  for (TensorId t = 0; t < used.size(); ++t) {
    if (!used[t]) names.push_back(step.collection.tensor(t).name);
  }
  return names;
}

}  // namespace holdfast
