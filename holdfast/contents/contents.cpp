// Reads boxes of tensors from files, whatever the strides in the file and in memory
// are, and whether the tensors lie in chunks.
#include "holdfast/contents/contents.h"

#include <algorithm>
#include <array>

#include "holdfast/contents/chunked_source.h"
#include "holdfast/contents/left_out.h"
#include "holdfast/env/source_sink.h"
#include "holdfast/state/seal.h"
#include "holdfast/state/strided.h"

namespace holdfast {
namespace {

// How many bytes one read brings in if the requested bytes lie scattered.
constexpr int64_t kWindowBytes = int64_t{4} << 20;
// Reading over a gap of up to this many bytes is cheaper than a second read.
constexpr int64_t kGapBytes = int64_t{32} << 10;
// Runs of at least this many bytes are read directly to their place in memory.
constexpr int64_t kDirectBytes = int64_t{64} << 10;
// How many bytes are read ahead if a tensor is not stored in row-major order.
constexpr int64_t kAheadBytes = int64_t{256} << 20;

size_t at(int k) { return static_cast<size_t>(k); }

// Carries out a strided copy from a source into memory. Long runs are read directly
// into memory; short ones are read together through a window that also covers the gaps
// between them.
class CopyReader {
 public:
  CopyReader(const Source& source, ByteSpan memory, Bytes& window)
      : source_(source), memory_(memory), window_(window) {}

  Result<void> read(StridedCopy copy) {
    if (copy.run == 0) return {};
    turn_forward(copy);
    copy_ = copy;
    measure();
    return visit(0, copy.from, copy.to);
  }

 private:
  // Reorders the loops so that the runs are visited in ascending order of the file,
  // with the widest stride outermost.
  static void turn_forward(StridedCopy& copy) {
    for (int k = 0; k < copy.loops; ++k) {
      StridedCopy::Loop& loop = copy.loop[at(k)];
      if (loop.from_stride >= 0) continue;
      copy.from += (loop.count - 1) * loop.from_stride;
      copy.to += (loop.count - 1) * loop.to_stride;
      loop = {loop.count, -loop.from_stride, -loop.to_stride};
    }
    std::stable_sort(copy.loop.begin(), copy.loop.begin() + copy.loops,
                     [](const StridedCopy::Loop& a, const StridedCopy::Loop& b) {
                       return a.from_stride > b.from_stride;
                     });
  }

  // Sets span_ and narrow_ for all loops.
  void measure() {
    span_[at(copy_.loops)] = copy_.run;
    narrow_[at(copy_.loops)] = copy_.run < kDirectBytes;
    for (int k = copy_.loops - 1; k >= 0; --k) {
      const StridedCopy::Loop& loop = copy_.loop[at(k)];
      span_[at(k)] = span_[at(k + 1)] + (loop.count - 1) * loop.from_stride;
      narrow_[at(k)] =
          narrow_[at(k + 1)] && loop.from_stride - span_[at(k + 1)] <= kGapBytes;
    }
  }

  // Carries out the loops from k inwards. Their first run is read from `from` and
  // belongs to `to`.
  Result<void> visit(int k, int64_t from, int64_t to) {
    if (k == copy_.loops) return read_run(from, to);
    const StridedCopy::Loop& loop = copy_.loop[at(k)];
    int64_t together = 1;
    if (narrow_[at(k)] && span_[at(k + 1)] <= kWindowBytes) {
      together += (kWindowBytes - span_[at(k + 1)]) / loop.from_stride;
    }
    for (int64_t i = 0; i < loop.count; i += together) {
      const int64_t count = std::min(together, loop.count - i);
      const int64_t here = from + i * loop.from_stride, there = to + i * loop.to_stride;
      if (count == 1) {
        HOLDFAST_TRY(visit(k + 1, here, there));
      } else {
        HOLDFAST_TRY(read_window(k, count, here, there));
      }
    }
    return {};
  }

  Result<void> read_run(int64_t from, int64_t to) {
    HOLDFAST_CHECK(to >= 0 && to <= std::ssize(memory_) - copy_.run,
                   "{} bytes at {} of {}", copy_.run, to, memory_.size());
    return source_.read(
        from, memory_.subspan(static_cast<size_t>(to), static_cast<size_t>(copy_.run)));
  }

  Result<void> read_window(int k, int64_t count, int64_t from, int64_t to) {
    const int64_t bytes =
        span_[at(k + 1)] + (count - 1) * copy_.loop[at(k)].from_stride;
    // Checks the range before memory is allocated, because a damaged file may name any
    // range.
    if (from + bytes > source_.size()) return source_.read_bytes(from, bytes).error();
    if (std::ssize(window_) < bytes) window_.resize(static_cast<size_t>(bytes));
    const ByteSpan window = ByteSpan(window_).first(static_cast<size_t>(bytes));
    HOLDFAST_TRY(source_.read(from, window));
    StridedCopy inner{.from = 0, .to = to, .run = copy_.run, .loops = copy_.loops - k};
    std::copy_n(copy_.loop.begin() + k, inner.loops, inner.loop.begin());
    inner.loop[0].count = count;
    run_copy(inner, window, memory_);
    return {};
  }

  const Source& source_;
  const ByteSpan memory_;
  Bytes& window_;
  StridedCopy copy_;
  // For the loops from k inwards: the number of bytes from their first byte to their
  // last, and whether one window over all of them is cheaper than single reads.
  std::array<int64_t, kMaxRank + 1> span_{};
  std::array<bool, kMaxRank + 1> narrow_{};
};

// Carries out one call of read_box().
class BoxReader {
 public:
  BoxReader(const Contents& contents, TensorId tensor, const Box& box, const Map& into,
            ByteSpan memory)
      : contents_(contents),
        tensor_(tensor),
        box_(box),
        into_(into),
        memory_(memory),
        missing_{box},
        reader_(contents) {}

  Result<void> read() {
    const std::string& name = contents_.collection.tensor(tensor_).name;
    for (const Slice& slice : contents_.collection.layout().slices(tensor_)) {
      if (missing_.empty()) break;
      HOLDFAST_TRY(read_slice(slice).within(name));
    }
    if (missing_.empty()) return {};
    return not_found("{}: no file has the box {}", name, to_string(missing_.front()));
  }

 private:
  // Reads the parts of the box that this slice has and that were not read before.
  Result<void> read_slice(const Slice& slice) {
    std::vector<Box> left;
    for (const Box& part : missing_) {
      const auto hit = intersect(part, slice.box);
      if (!hit) {
        left.push_back(part);
        continue;
      }
      HOLDFAST_TRY(reader_.read(tensor_, slice.first, *hit,
                                into_.narrowed(box_, *hit), memory_));
      std::ranges::copy(subtract(part, *hit), std::back_inserter(left));
    }
    missing_ = std::move(left);
    return {};
  }

  const Contents& contents_;
  const TensorId tensor_;
  const Box& box_;
  const Map& into_;
  const ByteSpan memory_;
  std::vector<Box> missing_;
  PieceReader reader_;
};

Result<void> read_unchecked(const Contents& contents, TensorId tensor, const Box& box,
                            const Map& into, ByteSpan memory) {
  const Tensor& of = contents.collection.tensor(tensor);
  if (!box.inside(of.shape)) {
    return invalid(
        "{}: box {} is not inside the tensor; expected a box inside the shape {}",
        of.name, to_string(box), to_string(of.shape));
  }
  if (box.empty()) return {};
  return BoxReader(contents, tensor, box, into, memory).read();
}

// Checks the digests of the records that hold the tensor. `whole` says that all of the
// tensor was read.
Result<void> check_digests(const Contents& contents, TensorId tensor, bool whole) {
  const Tensor& of = contents.collection.tensor(tensor);
  if (contents.digests == nullptr || of.shape.elements() == 0) return {};
  const Layout& layout = contents.collection.layout();
  for (const Slice& slice : layout.slices(tensor)) {
    const int64_t offset = layout.map(slice.first, bytes_of(of.dtype)).offset;
    const HolderId holder = layout.holder(slice.first);
    HOLDFAST_TRY(contents.digests->check_record(holder, offset, whole).within(of.name));
  }
  return {};
}

// Reads some bytes of one element of the box `in`: as many as `into` takes, from byte
// `skip` on.
Result<void> read_part(const ReadDense& read, const Box& in, int64_t bytes,
                       int64_t element, int64_t skip, ByteSpan into) {
  std::array<std::byte, 16> whole{};
  HOLDFAST_TRY(read(flat_range(in, element, element + 1).at(0),
                    ByteSpan(whole).first(static_cast<size_t>(bytes))));
  std::copy_n(whole.begin() + skip, into.size(), into.begin());
  return {};
}

// True if all pieces of the tensor lie in their files in row-major order without gaps.
bool lies_row_major(const Contents& contents, TensorId tensor) {
  const Layout& layout = contents.collection.layout();
  const int64_t element = bytes_of(contents.collection.tensor(tensor).dtype);
  return std::ranges::all_of(layout.slices(tensor), [&](const Slice& slice) {
    const Map map = layout.map(slice.first, element);
    return map == Map::dense(slice.box, element, map.offset);
  });
}

}  // namespace

int64_t read_ahead_of(const Contents& contents, TensorId tensor) {
  if (!lies_row_major(contents, tensor)) return kAheadBytes;
  const Layout& layout = contents.collection.layout();
  const auto slices = layout.slices(tensor);
  if (slices.size() != 1 || slices.front().first == slices.front().last) return 0;
  const PieceId piece = slices.front().first;
  const Source* source = contents.sources[layout.holder(piece)].get();
  const auto* chunked = dynamic_cast<const ChunkedSource*>(source);
  if (chunked == nullptr) return 0;
  const int64_t element = bytes_of(contents.collection.tensor(tensor).dtype);
  const int64_t best = chunked->best_part(layout.map(piece, element).offset);
  return std::min(best, kAheadBytes);
}

Result<void> PieceReader::read(TensorId tensor, PieceId piece, const Box& part,
                               const Map& into, ByteSpan memory) {
  const Layout& layout = contents_.collection.layout();
  const Tensor& of = contents_.collection.tensor(tensor);
  const int64_t element = bytes_of(of.dtype);
  const Box& box = layout.box(piece);
  const Map map = layout.map(piece, element);
  const Source& source = *contents_.sources[layout.holder(piece)];
  const auto* chunked = dynamic_cast<const ChunkedSource*>(&source);
  // Chunks are known of a dataset as it lies in the file, so not of a transposed tensor.
  if (chunked != nullptr && box == Box::whole(of.shape) &&
      map == Map::dense(box, element, map.offset) && chunked->has_chunks(map.offset)) {
    return chunked->read_chunks(map.offset, part, into, memory);
  }
  return CopyReader(source, memory, window_)
      .read(plan_copy(map.narrowed(box, part), into, part.shape(), element));
}

Result<void> read_box(const Contents& contents, TensorId tensor, const Box& box,
                      const Map& into, ByteSpan memory) {
  HOLDFAST_TRY(read_unchecked(contents, tensor, box, into, memory));
  const Shape& shape = contents.collection.tensor(tensor).shape;
  return box.empty() ? Result<void>()
                     : check_digests(contents, tensor, box == Box::whole(shape));
}

Result<void> read_canonical(const Contents& contents, TensorId tensor, int64_t offset,
                            ByteSpan into) {
  const Tensor& of = contents.collection.tensor(tensor);
  if (offset < 0 || offset > of.bytes() - std::ssize(into)) {
    return invalid("{}: {} bytes at {}; expected a range inside its {} bytes", of.name,
                   into.size(), offset, of.bytes());
  }
  return read_stream(contents, tensor, Box::whole(of.shape), offset, into);
}

Result<void> read_stream(const Contents& contents, TensorId tensor, const Box& in,
                         int64_t offset, ByteSpan into) {
  const int64_t bytes = bytes_of(contents.collection.tensor(tensor).dtype);
  return read_stream_by(in, bytes, offset, into, [&](const Box& box, ByteSpan dense) {
    return read_unchecked(contents, tensor, box, Map::dense(box, bytes), dense);
  });
}

Result<void> read_stream_by(const Box& in, int64_t bytes, int64_t offset, ByteSpan into,
                            const ReadDense& read) {
  HOLDFAST_CHECK(offset >= 0 && offset <= in.elements() * bytes - std::ssize(into),
                 "{} bytes at {} of {}", into.size(), offset, to_string(in));
  if (into.empty()) return {};
  if (const int64_t skip = offset % bytes; skip != 0) {
    const int64_t head = std::min<int64_t>(bytes - skip, std::ssize(into));
    HOLDFAST_TRY(read_part(read, in, bytes, offset / bytes, skip,
                           into.first(static_cast<size_t>(head))));
    offset += head;
    into = into.subspan(static_cast<size_t>(head));
  }
  const int64_t whole = std::ssize(into) / bytes, first = offset / bytes;
  for (const Box& box : flat_range(in, first, first + whole)) {
    const auto size = static_cast<size_t>(box.elements() * bytes);
    HOLDFAST_TRY(read(box, into.first(size)));
    into = into.subspan(size);
  }
  if (into.empty()) return {};
  return read_part(read, in, bytes, first + whole, 0, into);
}

CanonicalStream::CanonicalStream(const Contents& contents, TensorId tensor)
    : contents_(contents),
      tensor_(tensor),
      ahead_(read_ahead_of(contents, tensor) > 0) {}

Result<void> CanonicalStream::read(ByteSpan into) {
  if (!ahead_) {
    HOLDFAST_TRY(read_canonical(contents_, tensor_, at_, into));
    at_ += std::ssize(into);
    return check_at_end();
  }
  while (!into.empty()) {
    if (at_ == part_begin_ + std::ssize(part_)) {
      const int64_t left = contents_.collection.tensor(tensor_).bytes() - at_;
      const int64_t most = read_ahead_of(contents_, tensor_);
      part_begin_ = at_;
      part_.resize(static_cast<size_t>(
          std::clamp(left, std::min(most, std::ssize(into)), most)));
      HOLDFAST_TRY(read_canonical(contents_, tensor_, at_, part_));
    }
    const auto used = static_cast<size_t>(at_ - part_begin_);
    const size_t count = std::min(into.size(), part_.size() - used);
    std::copy_n(part_.begin() + static_cast<std::ptrdiff_t>(used), count, into.begin());
    into = into.subspan(count);
    at_ += static_cast<int64_t>(count);
  }
  return check_at_end();
}

Result<void> CanonicalStream::check_at_end() const {
  const bool end = at_ == contents_.collection.tensor(tensor_).bytes();
  return end ? check_digests(contents_, tensor_, true) : Result<void>();
}

Result<Seal> seal_of_tensor(const Contents& contents, TensorId tensor, int64_t bytes,
                            const std::function<Result<void>(int64_t)>& count) {
  CanonicalStream stream(contents, tensor);
  Bytes window(static_cast<size_t>(std::min(kWindowBytes, bytes)));
  Seal seal;
  for (int64_t begin = 0; begin < bytes; begin += kWindowBytes) {
    const ByteSpan part = ByteSpan(window).first(
        static_cast<size_t>(std::min(kWindowBytes, bytes - begin)));
    HOLDFAST_TRY(stream.read(part));
    seal += seal_bytes(part, static_cast<uint64_t>(begin));
    if (count) HOLDFAST_TRY(count(std::ssize(part)));
  }
  return seal;
}

std::string to_string(const Damage& damage) {
  if (damage.chunk < 0) return fmt::format("{}: {}", damage.file, damage.what);
  std::string names;
  for (const std::string& name : damage.tensors) {
    names += (names.empty() ? "; " : ", ") + name;
  }
  return fmt::format("{}: chunk {} (bytes {} to {}{}) {}", damage.file, damage.chunk,
                     damage.offset, damage.offset + damage.bytes, names, damage.what);
}

Result<void> FormatReport::add(const std::string& file, Result<FormatReport> one) {
  if (!one.ok() && one.error().code() != ErrorCode::kCorrupt) return one.error();
  if (!one.ok()) {
    damage.push_back({.file = file, .what = one.error().message()});
    return {};
  }
  std::ranges::move(one->damage, std::back_inserter(damage));
  bytes_read += one->bytes_read;
  checked = checked && one->checked;
  return {};
}

const std::string* find_left_out(const Contents& contents, std::string_view name) {
  const auto found = std::ranges::find_if(contents.left_out, [&](const auto& line) {
    return line.starts_with(name) && line.substr(name.size()).starts_with(": ");
  });
  return found == contents.left_out.end() ? nullptr : &*found;
}

std::string why_of(const Error& error, std::string_view place) {
  std::string_view message = error.message();
  if (message.starts_with(place)) message.remove_prefix(place.size());
  if (message.starts_with(':')) message.remove_prefix(1);
  if (message.starts_with(' ')) message.remove_prefix(1);
  return std::string(message);
}

}  // namespace holdfast
