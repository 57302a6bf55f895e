#include "holdfast/checkpoint/read_pieces.h"

#include <algorithm>
#include <utility>

#include "holdfast/base/mutex.h"
#include "holdfast/checkpoint/read_plan_internal.h"
#include "holdfast/checkpoint/seal_repair.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/memory/piece_writer.h"
#include "holdfast/state/box_stream.h"

namespace holdfast {
namespace {

// Rows of fewer bytes are read with their chunks, because many small reads are slower.
constexpr int64_t kWorthARead = int64_t{64} << 10;
// How many times the needed bytes may be read before single rows are read instead.
constexpr double kMostWaste = 1.05;
constexpr size_t kMostDescriptors = 600;  // how many files may be open at once

// Returns the first and the last byte of the file that the read needs.
ByteRange range_of_rows(const PlannedRead& planned) {
  const Map map = Map::dense(planned.stored, planned.element, planned.offset);
  return range_of(map.narrowed(planned.stored, planned.box), planned.box.shape(),
                  planned.element);
}

// The memory that a read fills, as a piece of its own.
LocalPiece filled_piece(const PlannedRead& planned) {
  LocalPiece piece = *planned.to;
  piece.map = piece.map.narrowed(piece.box, planned.box);
  piece.box = planned.box;
  return piece;
}

// The seal of a window of the piece's stream, read back from its memory. Bytes on their
// way to a device are not there yet, so `window` is sealed instead.
Seal seal_filled(const LocalPiece& piece, const Tensor& tensor, int64_t at,
                 ByteView window) {
  const auto size = static_cast<int64_t>(window.size());
  if (piece.device != nullptr)
    return seal_stream(tensor.shape, tensor.dtype, piece.box, at, window);
  if (const std::optional<ByteView> memory = piece.window(at, size))
    return seal_stream(tensor.shape, tensor.dtype, piece.box, at, *memory);
  Bytes copy(window.size());
  gather(piece.place(), piece.memory, at, copy);
  return seal_stream(tensor.shape, tensor.dtype, piece.box, at, copy);
}

// Reads one file and fills the pieces that need its bytes.
class FileFiller {
 public:
  FileFiller(Env& env, const StepFiles& step, const ShardFile& file,
             const std::vector<PlannedRead>& reads, PieceWriter& writer)
      : env_(env),
        step_(step),
        file_(file),
        path_(step.folder / file.name),
        writer_(writer) {
    for (const PlannedRead& planned : reads) {
      (is_faster_by_rows(planned) ? by_row_ : by_chunk_).push_back(planned);
    }
    seen_ = std::make_unique<SeenSeals>(by_chunk_.size());
  }

  // Opens the file. From now on it can be read even if its name is removed.
  Result<void> hold(const ReadOptions& options) {
    if (!by_chunk_.empty()) opened_ = HOLDFAST_TRY(open_shard(env_, path_, options));
    if (!by_row_.empty()) rows_ = HOLDFAST_TRY(FileSource::open(env_, path_));
    return {};
  }
  void let_go() {
    opened_ = {};
    rows_.reset();
  }

  Result<void> run(const ReadOptions& options, PiecesRead& filled) {
    for (const PlannedRead& planned : by_chunk_) filled.needed += planned.bytes();
    for (const PlannedRead& planned : by_row_) filled.needed += planned.bytes();
    HOLDFAST_TRY(read_by_chunk(options, filled));
    HOLDFAST_TRY(read_rows(filled));
    let_go();
    return {};
  }

  // Compares seals, when all bytes have arrived.
  Result<void> check_seals(PiecesRead& filled) const {
    MutexLock lock(seen_->mutex);
    for (size_t i = 0; i < by_chunk_.size(); ++i) {
      const PlannedRead& planned = by_chunk_[i];
      const Seal& seen = seen_->seals[i];
      if (!planned.whole()) {
        filled.by_range.push_back({.tensor = planned.tensor,
                                   .stored = planned.stored,
                                   .box = planned.box,
                                   .seal = seen,
                                   .digested = true});
      } else if (planned.sealed.bytes > 0 && seen != planned.sealed) {
        filled.mended.push_back(
            HOLDFAST_TRY(mend_piece(filled_piece(planned), planned.sealed, seen)
                             .within(path_.native())));
      }
    }
    return {};
  }

 private:
  // The seals of what has arrived, for each read by chunks.
  struct SeenSeals {
    explicit SeenSeals(size_t reads) : seals(reads) {}
    Mutex mutex;
    std::vector<Seal> seals HOLDFAST_GUARDED_BY(mutex);
  };

  bool is_faster_by_rows(const PlannedRead& planned) const {
    if (!file_.packed.empty() || planned.to->device != nullptr) return false;
    const StridedCopy rows = planned.rows();
    if (rows.loops == 0 || rows.run < kWorthARead) return false;
    int64_t touched = 0;
    const ByteRange range = range_of_rows(planned);
    const ChunkRange chunks = chunks_of(file_, range.first, range.last);
    for (size_t i = chunks.first; i < chunks.last; ++i)
      touched += file_.chunks[i].bytes;
    return static_cast<double>(touched) >
           kMostWaste * static_cast<double>(planned.bytes());
  }

  Result<void> read_by_chunk(const ReadOptions& options, PiecesRead& filled) {
    std::vector<bool> touched(file_.chunks.size());
    // The first chunk holds the header. It is read too, so that damage to it is
    // noticed.
    if (!by_chunk_.empty() && !touched.empty()) touched[0] = true;
    for (const PlannedRead& planned : by_chunk_) {
      const ByteRange range = range_of_rows(planned);
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
        [this](const FoundChunk& found) { return fill_from_chunk(found); }, options,
        std::exchange(opened_, {}));
  }

  // Checks a chunk and copies its bytes to the pieces. Several threads call it at once,
  // which is safe because chunks do not overlap, neither in the file nor in memory.
  Result<void> fill_from_chunk(const FoundChunk& found) const {
    HOLDFAST_TRY(check_chunk(path_, file_, found));
    const Chunk& chunk = file_.chunks[found.number];
    auto next = std::partition_point(
        by_chunk_.begin(), by_chunk_.end(), [&](const PlannedRead& planned) {
          return planned.offset + planned.stored_bytes() <= chunk.offset;
        });
    for (; next != by_chunk_.end() && next->offset < chunk.offset + chunk.bytes;
         ++next) {
      const Seal seal = HOLDFAST_TRY(fill_part(*next, chunk, found.bytes));
      MutexLock lock(seen_->mutex);
      seen_->seals[static_cast<size_t>(next - by_chunk_.begin())] += seal;
    }
    return {};
  }

  // Returns the seal of what it has filled.
  Result<Seal> fill_part(const PlannedRead& planned, const Chunk& chunk,
                         ByteView bytes) const {
    const Tensor& tensor = step_.collection.tensor(planned.tensor);
    const int64_t first = std::max(chunk.offset, planned.offset);
    const int64_t last =
        std::min(chunk.offset + chunk.bytes, planned.offset + planned.stored_bytes());
    const ByteView window = bytes.subspan(static_cast<size_t>(first - chunk.offset),
                                          static_cast<size_t>(last - first));
    const int64_t at = first - planned.offset;  // in the piece's stream
    const LocalPiece& to = *planned.to;
    if (planned.whole()) {
      HOLDFAST_TRY(writer_.put(to, planned.box, planned.element, at, window));
      return seal_filled(filled_piece(planned), tensor, at, window);
    }
    const int64_t end = last - planned.offset;
    if (at % planned.element != 0 || end % planned.element != 0) {
      return corrupt("{}: chunk at byte {} cuts an element; expected whole elements",
                     path_.native(), chunk.offset);
    }
    const Map stream = Map::dense(planned.stored, planned.element, -at);
    Seal seal;
    for (const Box& part :
         flat_range(planned.stored, at / planned.element, end / planned.element)) {
      const std::optional<Box> common = intersect(part, planned.box);
      if (!common.has_value()) continue;
      const Map from = stream.narrowed(planned.stored, *common);
      HOLDFAST_TRY(writer_.put_part(to, *common, planned.element, from, window));
      const bool here = to.device == nullptr;
      seal += seal_box(tensor.shape, tensor.dtype, *common,
                       here ? to.map.narrowed(to.box, *common) : from,
                       here ? ByteView(to.memory) : window);
    }
    return seal;
  }

  Result<void> read_rows(PiecesRead& filled) {
    if (by_row_.empty()) return {};
    if (rows_ == nullptr) rows_ = HOLDFAST_TRY(FileSource::open(env_, path_));
    for (const PlannedRead& planned : by_row_) {
      HOLDFAST_TRY(read_rows_of(*rows_, planned));
      filled.read += planned.bytes();
      const Tensor& tensor = step_.collection.tensor(planned.tensor);
      const LocalPiece& to = *planned.to;
      filled.by_range.push_back(
          {.tensor = planned.tensor,
           .stored = planned.stored,
           .box = planned.box,
           .seal = seal_box(tensor.shape, tensor.dtype, planned.box,
                            to.map.narrowed(to.box, planned.box), to.memory)});
    }
    return {};
  }

  // Makes one read for each row, which is a part of the box that is contiguous in the
  // file.
  Result<void> read_rows_of(const Source& source, const PlannedRead& planned) {
    const int64_t row = planned.rows().run / planned.element;  // in elements
    const Map stored = Map::dense(planned.stored, planned.element, planned.offset);
    const LocalPiece& to = *planned.to;
    Bytes buffer(static_cast<size_t>(row * planned.element));
    for (int64_t at = 0; at < planned.box.elements(); at += row) {
      const std::vector<Box> parts = flat_range(planned.box, at, at + row);
      HOLDFAST_TRY(
          source.read(stored.offset_of(planned.stored, parts.front()), buffer));
      scatter_row(planned, at, to, buffer);
    }
    return {};
  }

  static void scatter_row(const PlannedRead& planned, int64_t at, const LocalPiece& to,
                          ByteView row) {
    scatter({.box = planned.box,
             .element_bytes = planned.element,
             .map = to.map.narrowed(to.box, planned.box)},
            to.memory, at * planned.element, row);
  }

  Env& env_;
  const StepFiles& step_;
  const ShardFile& file_;
  const Path path_;
  PieceWriter& writer_;
  std::vector<PlannedRead> by_chunk_, by_row_;
  std::unique_ptr<SeenSeals> seen_;
  OpenShard opened_;
  std::unique_ptr<FileSource> rows_;
};

// Opens all files, so that they can be read even if retention removes the step now. If
// that would take too many descriptors, each file is opened when it is read.
Result<void> hold_all(std::vector<FileFiller>& fillers, const ReadOptions& options) {
  const auto each = static_cast<size_t>(std::max(options.threads, 1)) + 1;
  if (fillers.size() * each > kMostDescriptors) return {};
  for (FileFiller& filler : fillers) {
    const Result<void> held = filler.hold(options);
    if (held.ok()) continue;
    if (held.error().code() != ErrorCode::kUnavailable) return held;
    for (FileFiller& other : fillers) other.let_go();
    return {};
  }
  return {};
}

}  // namespace

Result<PiecesRead> read_pieces(Env& env, const StepFiles& step, const LocalState& into,
                               const ReadOptions& options) {
  HOLDFAST_TRY(into.check());
  ReadPlan reads = HOLDFAST_TRY(plan_reads(step, into));
  PiecesRead filled;
  PieceWriter writer(into.pieces);
  std::vector<FileFiller> fillers;
  for (size_t f = 0; f < step.files.size(); ++f) {
    if (reads[f].empty()) continue;
    fillers.emplace_back(env, step, step.files[f], std::move(reads[f]), writer);
  }
  HOLDFAST_TRY(hold_all(fillers, options));
  for (FileFiller& filler : fillers) HOLDFAST_TRY(filler.run(options, filled));
  HOLDFAST_TRY(writer.finish());
  for (const FileFiller& filler : fillers) HOLDFAST_TRY(filler.check_seals(filled));
  return filled;
}

}  // namespace holdfast
