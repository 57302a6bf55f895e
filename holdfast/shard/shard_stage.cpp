// The staging half of ShardWriter: copies header and pieces into blocks of the ring.
#include <algorithm>
#include <cstring>

#include "holdfast/shard/shard_writer.h"

namespace holdfast {
namespace {

// How many blocks the devices fill at the same time.
constexpr size_t kAhead = 8;
constexpr size_t kSealSlice = size_t{64} << 10;

// The bytes [first, last) of the file. in() returns them inside a window that begins at
// byte `begin` of the file.
struct Overlap {
  int64_t first;
  int64_t last;
  ByteSpan in(ByteSpan window, int64_t begin) const {
    return window.subspan(static_cast<size_t>(first - begin),
                          static_cast<size_t>(last - first));
  }
};
// The part of the bytes [at, at + bytes) that lies in the window; nullopt if there is
// none.
std::optional<Overlap> overlap(int64_t begin, ByteSpan window, int64_t at,
                               int64_t bytes) {
  const Overlap part{std::max(begin, at),
                     std::min(begin + static_cast<int64_t>(window.size()), at + bytes)};
  if (part.first >= part.last) return std::nullopt;
  return part;
}

// Makes a mark on each device, behind all work that the device was asked to do so far.
Result<std::vector<DeviceMark>> mark_all(const std::vector<const Device*>& devices) {
  std::vector<DeviceMark> marks;
  for (const Device* device : devices) marks.push_back(HOLDFAST_TRY(device->mark()));
  return marks;
}

}  // namespace

// Blocks that devices are still filling, in file order. The destructor waits for the
// devices before it gives the blocks back.
class ShardWriter::Filling {
 public:
  Filling(ShardWriter& writer, const Observe& observe)
      : writer_(writer), observe_(observe) {}
  ~Filling() {
    for (const Entry& entry : entries_) {
      static_cast<void>(wait(entry));
      writer_.ring_.give_back(entry.block.memory);
    }
  }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  void add(const Block& block, std::vector<DeviceMark> marks) {
    entries_.push_back({block, std::move(marks)});
  }

  // Waits for the oldest block and hands it to the writing half. Returns false if that
  // half has failed.
  Result<bool> finish_one() {
    HOLDFAST_TRY(wait(entries_.front()));
    const Block block = entries_.front().block;
    entries_.pop_front();
    if (observe_) observe_(block.offset, block.memory.first(block.used));
    return writer_.put(block);
  }

  // Returns a block to fill. If the ring has none left, finishes blocks that are being
  // filled: this object may hold every block of the ring, and would wait for ever.
  Result<ByteSpan> take_block() {
    while (!entries_.empty()) {
      if (const std::optional<ByteSpan> block = writer_.ring_.try_take_block()) {
        return *block;
      }
      // A failure of the writing half is not handled here: stage_blocks() looks for one
      // before it takes the next block.
      static_cast<void>(HOLDFAST_TRY(finish_one()));
    }
    return writer_.ring_.take_block();
  }

 private:
  struct Entry {
    Block block;
    std::vector<DeviceMark> marks;
  };

  static Result<void> wait(const Entry& entry) {
    for (const DeviceMark& mark : entry.marks) HOLDFAST_TRY(mark.wait());
    return {};
  }

  ShardWriter& writer_;
  const Observe& observe_;
  std::deque<Entry> entries_;
};

Result<void> ShardWriter::stage(const Observe& observe) {
  Result<void> staged = stage_blocks(observe);
  if (!staged.ok()) {
    cancel(staged.error());
    return staged;
  }
  HOLDFAST_TRY(failure());
  MutexLock lock(mutex_);
  all_staged_ = true;
  changed_.notify_all();
  return {};
}

Result<void> ShardWriter::stage_blocks(const Observe& observe) {
  begin_seals();
  Filling filling(*this, observe);
  for (int64_t offset = 0; offset < bytes_; offset += ring_.block_bytes()) {
    HOLDFAST_TRY(failure());
    const ByteSpan memory = HOLDFAST_TRY(filling.take_block());
    const auto used =
        static_cast<size_t>(std::min(ring_.block_bytes(), bytes_ - offset));
    const Block block{.offset = offset, .memory = memory, .used = used};
    std::vector<const Device*> busy;
    const Result<void> filled = fill(offset, memory.first(used), busy);
    const Result<std::vector<DeviceMark>> marks = mark_all(busy);
    filling.add(block, marks.ok() ? *marks : std::vector<DeviceMark>());
    HOLDFAST_TRY(filled);
    HOLDFAST_TRY(marks);
    note_begun(piece_, *marks);
    // No device works on this block, so it is handed on at once. Blocks are handed on in
    // file order, so the earlier ones are finished first.
    const size_t ahead = busy.empty() ? 0 : kAhead - 1;
    while (filling.size() > ahead) {
      if (!HOLDFAST_TRY(filling.finish_one())) return {};
    }
  }
  while (!filling.empty()) {
    if (!HOLDFAST_TRY(filling.finish_one())) return {};
  }
  return finish_seals();
}

// Decides where each piece is sealed. Devices begin to seal theirs now: before the copies
// into the ring, so that whoever waits for the copy of a piece waits for its seal, too.
void ShardWriter::begin_seals() {
  if (seal_at_ == SealAt::kStaged || shard_.read) return;
  by_devices_.emplace(std::span(shard_.pieces.begin(), shard_.pieces.end()));
  for (size_t i = 0; i < shard_.pieces.size(); ++i) {
    const bool on_host = shard_.pieces[i].device == nullptr;
    sealed_at_source_[i] = on_host ? seal_at_ == SealAt::kSource : by_devices_->has(i);
  }
}

// The devices have copied all pieces, and have sealed them before.
Result<void> ShardWriter::finish_seals() {
  return by_devices_.has_value() ? by_devices_->finish(source_seals_) : Result<void>();
}

// Copies the bytes of the file from `offset` on into a block. Adds each device that
// copies something into it to `busy`.
Result<void> ShardWriter::fill(int64_t offset, ByteSpan into,
                               std::vector<const Device*>& busy) {
  const auto header = static_cast<int64_t>(shard_.header.size());
  if (const auto part = overlap(offset, into, 0, header)) {
    const ByteSpan to = part->in(into, offset);
    std::memcpy(to.data(), shard_.header.data() + part->first, to.size());
  }
  const int64_t end = offset + static_cast<int64_t>(into.size());
  for (; piece_ < shard_.pieces.size(); ++piece_) {
    const LocalPiece& piece = shard_.pieces[piece_];
    const int64_t begin = shard_.offsets[piece_], bytes = piece.bytes();
    if (const auto part = overlap(offset, into, begin, bytes)) {
      const ByteSpan to = part->in(into, offset);
      HOLDFAST_TRY(shard_.read ? shard_.read(piece_, part->first - begin, to)
                               : fill_piece(piece, part->first - begin, to, busy));
    }
    if (begin + bytes > end) return {};
  }
  return {};
}

Result<void> ShardWriter::fill_piece(const LocalPiece& piece, int64_t first,
                                     ByteSpan into, std::vector<const Device*>& busy) {
  if (piece.device == nullptr && sealed_at_source_[piece_]) {
    copy_and_seal(piece, first, into);
    return {};
  }
  if (piece.device == nullptr) {
    gather(piece.place(), piece.memory, first, into);
    return {};
  }
  if (std::find(busy.begin(), busy.end(), piece.device) == busy.end()) {
    busy.push_back(piece.device);
  }
  return piece.device->read(piece.place(), piece.memory, first, into);
}

// Copies a window of the piece that stage() is at, and adds it to the piece's seal. The
// memory is read twice; by slices, so that the CPU's cache has it the second time.
void ShardWriter::copy_and_seal(const LocalPiece& piece, int64_t first, ByteSpan into) {
  const BoxMemory place = piece.place();
  for (size_t at = 0; at < into.size(); at += kSealSlice) {
    const ByteSpan slice = into.subspan(at, std::min(kSealSlice, into.size() - at));
    const int64_t begin = first + static_cast<int64_t>(at);
    gather(place, piece.memory, begin, slice);
    const auto live = piece.window(begin, static_cast<int64_t>(slice.size()));
    // What does not lie in memory as it does in the file is sealed as it was copied.
    source_seals_[piece_] += seal_stream(piece.tensor->shape, piece.tensor->dtype,
                                         piece.box, begin, live.value_or(slice));
  }
}

// Records that the copies of the first `pieces` pieces are begun. The copies of the
// newly begun ones are complete when `marks` are reached.
void ShardWriter::note_begun(size_t pieces, const std::vector<DeviceMark>& marks) {
  MutexLock lock(mutex_);
  while (begun_.size() < pieces) {
    const Device* device = shard_.pieces[begun_.size()].device;
    std::optional<DeviceMark> behind;
    for (const DeviceMark& mark : marks) {
      if (&mark.device() == device) behind = mark;
    }
    begun_.push_back(std::move(behind));
  }
  changed_.notify_all();
}

Result<void> ShardWriter::make_wait(CudaStream stream, size_t piece) {
  const Device* const device = shard_.pieces[piece].device;
  if (device == nullptr) return {};
  std::optional<DeviceMark> mark;
  {
    MutexLock lock(mutex_);
    while (begun_.size() <= piece && !error_.has_value()) changed_.wait(mutex_);
    if (error_.has_value()) return *error_;
    mark = begun_[piece];
  }
  if (!mark.has_value()) return {};
  return device->make_wait(stream, *mark);
}

Result<void> ShardWriter::make_wait(CudaStream stream, const Device& device) {
  for (size_t i = shard_.pieces.size(); i-- > 0;) {
    // The copies run in one stream in order, so the last piece of the device is copied
    // last.
    const LocalPiece& piece = shard_.pieces[i];
    if (piece.device == &device && piece.bytes() > 0) return make_wait(stream, i);
  }
  return {};
}

// Hands a filled block to the writing half. If that half has failed, gives the block
// back to the ring and returns false.
bool ShardWriter::put(const Block& block) {
  MutexLock lock(mutex_);
  if (error_.has_value()) {
    ring_.give_back(block.memory);
    return false;
  }
  staged_.push_back(block);
  changed_.notify_all();
  return true;
}

}  // namespace holdfast
