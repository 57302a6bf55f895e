// The writing half of ShardWriter: digests the filled blocks and writes them to the
// file.
#include "holdfast/shard/shard_writer.h"

#include <algorithm>
#include <cstring>

#include "holdfast/base/checked.h"
#include "holdfast/base/crc32c.h"
#include "holdfast/shard/chunk_compressor_internal.h"

namespace holdfast {
namespace {

// This many bytes are digested at a time, so that both digests find them in the CPU's
// cache.
constexpr int64_t kSlice = int64_t{256} << 10;

int64_t length(ByteView bytes) { return static_cast<int64_t>(bytes.size()); }

ByteView slice_of(ByteView bytes, int64_t first, int64_t last) {
  return bytes.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first));
}

// The bytes [first, last) of the file that the two ranges [first, first + size) and
// [begin, begin + room) share.
struct Common {
  int64_t first;
  int64_t last;
  bool empty() const { return first >= last; }
};
Common common(int64_t first, int64_t size, int64_t begin, int64_t room) {
  return {std::max(first, begin), std::min(first + size, begin + room)};
}

}  // namespace

int64_t ShardToWrite::bytes() const {
  return pieces.empty() ? length(header) : offsets.back() + pieces.back().bytes();
}

std::vector<Chunk> cut_chunks(const ShardToWrite& shard) {
  std::vector<Chunk> chunks{{.offset = 0, .bytes = length(shard.header)}};
  // Whether the last chunk has small pieces and may take more of them.
  bool open = false;
  for (size_t i = 0; i < shard.pieces.size(); ++i) {
    const int64_t bytes = shard.pieces[i].bytes();
    if (bytes == 0) continue;
    if (bytes < kChunkBytes) {
      if (open && chunks.back().bytes + bytes <= kChunkBytes) {
        chunks.back().bytes += bytes;
      } else {
        chunks.push_back({.offset = shard.offsets[i], .bytes = bytes});
      }
      open = true;
      continue;
    }
    for (int64_t at = 0; at < bytes; at += kChunkBytes) {
      chunks.push_back({.offset = shard.offsets[i] + at,
                        .bytes = std::min(kChunkBytes, bytes - at)});
    }
    open = false;
  }
  return chunks;
}

// Computes chunk digests and seals of bytes that arrive in file order.
class ShardWriter::Digester {
 public:
  explicit Digester(const ShardWriter& writer)
      : writer_(writer),
        shard_(writer.shard_),
        seals_(shard_.pieces.size()),
        chunks_(cut_chunks(shard_)) {}

  void add(int64_t offset, ByteView bytes) {
    for (int64_t at = 0; at < length(bytes); at += kSlice) {
      const ByteView slice = slice_of(bytes, at, std::min(at + kSlice, length(bytes)));
      add_to_chunks(offset + at, slice);
      add_to_seals(offset + at, slice);
    }
  }

  WrittenShard finish(int64_t bytes, const WriteTimes& times) && {
    for (size_t i = 0; i < seals_.size(); ++i) {
      if (writer_.sealed_at_source_[i])
        seals_[i] = writer_.source_seals_[i];
    }
    return {.bytes = bytes,
            .chunks = std::move(chunks_),
            .packed = {},
            .seals = std::move(seals_),
            .times = times};
  }

 private:
  void add_to_chunks(int64_t offset, ByteView slice) {
    for (; chunk_ < chunks_.size(); ++chunk_) {
      Chunk& chunk = chunks_[chunk_];
      const Common part = common(offset, length(slice), chunk.offset, chunk.bytes);
      if (!part.empty()) {
        chunk.crc = crc32c_extend(
            chunk.crc, slice_of(slice, part.first - offset, part.last - offset));
      }
      if (chunk.offset + chunk.bytes > offset + length(slice)) return;
    }
  }

  void add_to_seals(int64_t offset, ByteView slice) {
    for (; piece_ < seals_.size(); ++piece_) {
      const LocalPiece& piece = shard_.pieces[piece_];
      const int64_t begin = shard_.offsets[piece_], bytes = piece.bytes();
      const Common part = common(offset, length(slice), begin, bytes);
      if (!part.empty() && !writer_.sealed_at_source_[piece_]) {
        seals_[piece_] += seal_stream(
            piece.tensor->shape, piece.tensor->dtype, piece.box, part.first - begin,
            slice_of(slice, part.first - offset, part.last - offset));
      }
      if (begin + bytes > offset + length(slice)) return;
    }
  }

  const ShardWriter& writer_;
  const ShardToWrite& shard_;
  std::vector<Seal> seals_;
  std::vector<Chunk> chunks_;
  // The first chunk, and the first piece, that is not complete yet.
  size_t chunk_ = 0;
  size_t piece_ = 0;
};

// Splits time into parts. lap() adds to `seconds` the time since the lap before, or
// since the stopwatch was made.
class ShardWriter::Stopwatch {
 public:
  explicit Stopwatch(Env& env) : env_(env), last_(env.now()) {}
  void lap(double& seconds) {
    const Instant now = env_.now();
    seconds += std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  Env& env_;
  Instant last_;
};

// The file, with several writes in flight. Gives each block back to the ring when it is
// written.
class ShardWriter::Output {
 public:
  Output(Env& env, const Path& path, const WriteOptions& options, StagingRing& ring)
      : env_(env), path_(path), options_(options), ring_(ring) {}
  ~Output() {
    while (!in_flight_.empty()) static_cast<void>(finish_one());
  }

  Result<void> open(int64_t bytes) {
    const Result<void> opened = create(OpenMode::kCreate, options_.direct, bytes);
    if (opened.ok() || opened.error().code() != ErrorCode::kUnsupported) return opened;
    return create(OpenMode::kCreate, false, bytes);
  }

  // Takes over the block, also on failure.
  Result<void> write(const Block& block) {
    submit(block);
    // The first write shows whether the file system really accepts direct writes.
    if (block.offset == 0) return finish_first(block);
    if (in_flight_.size() < static_cast<size_t>(options_.in_flight)) return {};
    return finish_one();
  }

  bool idle() const { return in_flight_.empty(); }

  // Waits for the oldest block in flight.
  Result<void> finish_one() {
    const Flight flight = in_flight_.front();
    in_flight_.pop_front();
    const Result<size_t> written = file_->wait(flight.ticket);
    ring_.give_back(flight.memory);
    if (!written.ok()) return written.error();
    return {};
  }

  Result<void> finish(int64_t bytes) {
    while (!in_flight_.empty()) HOLDFAST_TRY(finish_one());
    HOLDFAST_TRY(file_->truncate(bytes));
    HOLDFAST_TRY(file_->sync_data());
    return file_->close();
  }

 private:
  struct Flight {
    Ticket ticket;
    ByteSpan memory;
  };

  Result<void> create(OpenMode mode, bool direct, int64_t bytes) {
    file_ = HOLDFAST_TRY(env_.open(path_, {.mode = mode, .direct = direct}));
    bytes_ = bytes;
    const Result<void> reserved =
        file_->allocate(divide_up(bytes, kDirectAlignment) * kDirectAlignment);
    // Some file systems cannot reserve space. On such a file system a full disk shows
    // later, while writing.
    if (!reserved.ok() && reserved.error().code() == ErrorCode::kUnsupported) return {};
    return reserved;
  }

  // Direct writes must have a length that is a multiple of kDirectAlignment. finish()
  // cuts off the bytes that are too many.
  void submit(const Block& block) {
    const size_t whole = static_cast<size_t>(
        divide_up(static_cast<int64_t>(block.used), kDirectAlignment) *
        kDirectAlignment);
    std::memset(block.memory.data() + block.used, 0, whole - block.used);
    in_flight_.push_back(
        {file_->submit_write(block.offset, block.memory.first(whole)), block.memory});
  }

  // Waits for the first write. If the file system refuses direct writes, opens the file
  // again without them and repeats the write.
  Result<void> finish_first(const Block& block) {
    const Flight flight = in_flight_.front();
    in_flight_.pop_front();
    const Result<size_t> written = file_->wait(flight.ticket);
    if (written.ok() || !file_->direct() || !refused(written.error())) {
      ring_.give_back(flight.memory);
      if (!written.ok()) return written.error();
      return {};
    }
    const Result<void> reopened = reopen_buffered();
    if (!reopened.ok()) {
      ring_.give_back(flight.memory);
      return reopened;
    }
    submit(block);
    return {};
  }

  static bool refused(const Error& error) {
    return error.code() == ErrorCode::kInvalid ||
           error.code() == ErrorCode::kUnsupported;
  }

  Result<void> reopen_buffered() {
    static_cast<void>(file_->close());
    return create(OpenMode::kTruncate, false, bytes_);
  }

  Env& env_;
  const Path path_;
  const WriteOptions options_;
  StagingRing& ring_;
  std::unique_ptr<File> file_;
  int64_t bytes_ = 0;
  std::deque<Flight> in_flight_;
};

ShardWriter::ShardWriter(StagingRing& ring, const ShardToWrite& shard, SealAt seal_at)
    : ring_(ring),
      shard_(shard),
      bytes_(shard_.bytes()),
      seal_at_(seal_at),
      sealed_at_source_(shard_.pieces.size()),
      source_seals_(shard_.pieces.size()) {
  int64_t end = length(shard_.header);
  for (size_t i = 0; i < shard_.pieces.size(); ++i) {
    HOLDFAST_CHECK(shard_.offsets[i] == end, "piece at byte {}; expected {}",
                   shard_.offsets[i], end);
    end += shard_.pieces[i].bytes();
  }
}

ShardWriter::~ShardWriter() {
  for (const Block& block : staged_) ring_.give_back(block.memory);
}

// Returns the next filled block in file order, and nullopt after the last one. If no
// block is filled yet, waits for one if `wait` is set, and returns nullopt otherwise.
Result<std::optional<ShardWriter::Block>> ShardWriter::next(bool wait) {
  MutexLock lock(mutex_);
  while (wait && staged_.empty() && !all_staged_ && !error_.has_value()) {
    changed_.wait(mutex_);
  }
  if (error_.has_value()) return *error_;
  if (staged_.empty()) return std::optional<Block>();
  const Block block = staged_.front();
  staged_.pop_front();
  return std::optional<Block>(block);
}

Result<WrittenShard> ShardWriter::write(Env& env, const Path& path,
                                        const WriteOptions& options) {
  if (options.pack_level > 0) return write_packed(env, path, options.pack_level);
  Digester digester(*this);
  Output output(env, path, options, ring_);
  WriteTimes times;
  Result<void> written = output.open(bytes_);
  Stopwatch watch(env);
  if (written.ok()) written = write_blocks(options, output, digester, watch, times);
  if (written.ok()) written = output.finish(bytes_);
  watch.lap(times.sync);
  if (!written.ok()) {
    cancel(written.error());
    return std::move(written).error();
  }
  return std::move(digester).finish(bytes_, times);
}

Result<void> ShardWriter::write_blocks(const WriteOptions& options, Output& output,
                                       Digester& digester, Stopwatch& watch,
                                       WriteTimes& times) {
  while (true) {
    // Waits for a block to be filled only if no write is in flight. Otherwise the
    // blocks in flight, which may be all blocks of the ring, would never come back.
    const std::optional<Block> block = HOLDFAST_TRY(next(output.idle()));
    watch.lap(times.stage);
    if (!block.has_value() && output.idle()) return {};
    if (block.has_value()) {
      ring_.hold_off();
      const ByteView bytes = block->memory.first(block->used);
      if (options.strike) options.strike(block->offset, block->memory.first(block->used));
      digester.add(block->offset, bytes);
      const Result<void> observed =
          options.observe ? options.observe(bytes) : Result<void>();
      if (!observed.ok()) {
        ring_.give_back(block->memory);
        return observed;
      }
      watch.lap(times.digest);
      HOLDFAST_TRY(output.write(*block));
    } else {
      HOLDFAST_TRY(output.finish_one());
    }
    watch.lap(times.disk);
  }
}

Result<WrittenShard> ShardWriter::write_packed(Env& env, const Path& path, int level) {
  Digester digester(*this);
  std::vector<Chunk> chunks = cut_chunks(shard_);
  std::vector<int> widths = widths_of(chunks);
  ChunkCompressor packer(std::move(chunks), std::move(widths), level);
  Stopwatch watch(env);
  WriteTimes times;
  Result<void> written = compress_blocks(env, path, packer, digester);
  watch.lap(times.disk);
  if (!written.ok()) {
    cancel(written.error());
    return std::move(written).error();
  }
  WrittenShard shard = std::move(digester).finish(packer.file_bytes(), times);
  shard.packed = std::move(packer).release_chunks();
  return shard;
}

Result<void> ShardWriter::compress_blocks(Env& env, const Path& path,
                                          ChunkCompressor& packer, Digester& digester) {
  HOLDFAST_TRY(packer.open(env, path));
  while (true) {
    const std::optional<Block> block = HOLDFAST_TRY(next(true));
    if (!block.has_value()) return packer.finish();
    const ByteView bytes = block->memory.first(block->used);
    ring_.hold_off();
    digester.add(block->offset, bytes);
    const Result<void> packed = packer.add(bytes);
    ring_.give_back(block->memory);
    HOLDFAST_TRY(packed);
  }
}

// The element size of the piece that each chunk begins with. It is 1 for the header,
// which is text.
std::vector<int> ShardWriter::widths_of(std::span<const Chunk> chunks) const {
  std::vector<int> widths(chunks.size(), 1);
  size_t piece = 0;
  for (size_t i = 1; i < chunks.size(); ++i) {
    while (shard_.offsets[piece] + shard_.pieces[piece].bytes() <= chunks[i].offset) {
      ++piece;
    }
    widths[i] = static_cast<int>(bytes_of(shard_.pieces[piece].tensor->dtype));
  }
  return widths;
}

void ShardWriter::cancel(Error error) {
  MutexLock lock(mutex_);
  if (!error_.has_value()) error_ = std::move(error);
  for (const Block& block : staged_) ring_.give_back(block.memory);
  staged_.clear();
  changed_.notify_all();
}

Result<void> ShardWriter::failure() {
  MutexLock lock(mutex_);
  if (error_.has_value()) return *error_;
  return {};
}

}  // namespace holdfast
