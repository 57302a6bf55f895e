#include "holdfast/shard/chunk_reader.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <numeric>
#include <thread>

#include "holdfast/base/checked.h"
#include "holdfast/device/staging_ring.h"
#include "holdfast/shard/zstd.h"

namespace holdfast {
namespace {

// Chunks that lie next to each other in the file and are read by one request.
struct Group {
  // The group has the chunks [first, last) of `wanted`.
  size_t first = 0;
  size_t last = 0;
  int64_t offset = 0;  // in the file; a multiple of kDirectAlignment
  int64_t bytes = 0;   // a multiple of kDirectAlignment
};

int64_t align_up(int64_t n) {
  return divide_up(n, kDirectAlignment) * kDirectAlignment;
}

std::vector<Group> group_chunks(const ShardFile& file, std::span<const size_t> wanted,
                                int64_t block) {
  std::vector<Group> groups;
  int64_t begin = 0;  // where the first chunk of the last group begins
  int64_t end = -1;   // where the last chunk of the last group ends
  for (size_t i = 0; i < wanted.size(); ++i) {
    const ByteExtent chunk = place_of(file, wanted[i]);
    const int64_t first = chunk.offset / kDirectAlignment * kDirectAlignment;
    const int64_t last = align_up(chunk.offset + chunk.bytes);
    if (chunk.offset != end || chunk.offset + chunk.bytes - begin > block) {
      groups.push_back({.first = i, .offset = first});
      begin = chunk.offset;
    }
    groups.back().last = i + 1;
    groups.back().bytes = last - groups.back().offset;
    end = chunk.offset + chunk.bytes;
  }
  return groups;
}

// Buffers for as many groups as are in flight. They are made of huge pages, so that the
// disk's driver need not split a read.
RingOptions buffers_for(std::span<const Group> groups, const ReadOptions& options) {
  int64_t largest = kDirectAlignment;
  for (const Group& group : groups) largest = std::max(largest, group.bytes);
  const int64_t count = std::min<int64_t>(options.in_flight, std::ssize(groups));
  return {.bytes = count * largest, .block = largest};
}

// Whether the error is the one of a file system that cannot read past its cache. Some
// file systems report it only at the first read.
bool refuses_direct(const Error& error) {
  return error.code() == ErrorCode::kInvalid || error.code() == ErrorCode::kUnsupported;
}

Result<std::unique_ptr<File>> open_to_read(Env& env, const Path& path, bool direct) {
  return env.open(path, {.mode = OpenMode::kRead, .direct = direct});
}

// The reads of one thread, in order, with several in flight.
class GroupReader {
 public:
  GroupReader(Env& env, const Path& path, const ShardFile& file,
              std::span<const size_t> wanted, const VisitChunk& visit,
              RingOptions buffers, std::unique_ptr<File> opened)
      : env_(env),
        path_(path),
        file_(file),
        wanted_(wanted),
        visit_(visit),
        opened_(std::move(opened)),
        buffers_(buffers) {}
  ~GroupReader() { drop_in_flight(); }

  Result<void> run(std::span<const Group> groups, const ReadOptions& options,
                   const std::atomic<bool>& stop) {
    Result<void> outcome = read(groups, options, options.direct, stop);
    if (outcome.ok() || !options.direct || !refuses_direct(outcome.error())) {
      return outcome;
    }
    drop_in_flight();
    opened_.reset();
    return read(groups.subspan(visited_), options, false, stop);
  }

 private:
  struct Flight {
    Group group;
    ByteSpan memory;
    Ticket ticket;
  };

  Result<void> read(std::span<const Group> groups, const ReadOptions& options,
                    bool direct, const std::atomic<bool>& stop) {
    if (opened_ == nullptr) opened_ = HOLDFAST_TRY(open_to_read(env_, path_, direct));
    for (const Group& group : groups) {
      if (stop) return {};
      if (in_flight_.size() == static_cast<size_t>(options.in_flight)) {
        HOLDFAST_TRY(finish_one());
      }
      submit(group);
    }
    while (!in_flight_.empty() && !stop) HOLDFAST_TRY(finish_one());
    return {};
  }

  void drop_in_flight() {
    for (const Flight& flight : in_flight_) {
      static_cast<void>(opened_->wait(flight.ticket));
      buffers_.give_back(flight.memory);
    }
    in_flight_.clear();
  }

  void submit(const Group& group) {
    const ByteSpan memory = buffers_.take_block();
    const Ticket ticket = opened_->submit_read(
        group.offset, memory.first(static_cast<size_t>(group.bytes)));
    in_flight_.push_back({group, memory, ticket});
  }

  Result<void> finish_one() {
    const Flight flight = in_flight_.front();
    in_flight_.pop_front();
    const Result<size_t> read = opened_->wait(flight.ticket);
    const Result<void> visited =
        read.ok() ? visit_group(flight.group, flight.memory.first(*read))
                  : Result<void>(read.error());
    buffers_.give_back(flight.memory);
    if (visited.ok()) ++visited_;
    return visited;
  }

  Result<void> visit_group(const Group& group, ByteView read) {
    for (size_t i = group.first; i < group.last; ++i) {
      const ByteExtent place = place_of(file_, wanted_[i]);
      const auto at = static_cast<size_t>(place.offset - group.offset);
      const size_t there = read.size() > at ? read.size() - at : 0;
      const ByteView stored =
          there == 0
              ? ByteView()
              : read.subspan(at, std::min(there, static_cast<size_t>(place.bytes)));
      const Result<ByteView> bytes = open_chunk(file_, wanted_[i], stored, unpacked_);
      // If this build cannot decompress, the chunk is not damaged: fails instead.
      if (!bytes.ok() && bytes.error().code() == ErrorCode::kUnsupported) {
        return bytes.error().within(path_.native());
      }
      const ByteView found = bytes.ok() ? *bytes : ByteView();
      HOLDFAST_TRY(
          visit_({.number = wanted_[i], .bytes = found, .crc = crc32c(found)}));
    }
    return {};
  }

  Env& env_;
  const Path& path_;
  const ShardFile& file_;
  const std::span<const size_t> wanted_;
  const VisitChunk& visit_;
  std::unique_ptr<File> opened_;
  // How many groups were visited so far.
  size_t visited_ = 0;
  StagingRing buffers_;
  Bytes unpacked_;
  std::deque<Flight> in_flight_;
};

}  // namespace

Result<OpenShard> open_shard(Env& env, const Path& path, const ReadOptions& options) {
  OpenShard opened;
  for (int i = 0; i < std::max(options.threads, 1); ++i) {
    Result<std::unique_ptr<File>> file = open_to_read(env, path, options.direct);
    if (!file.ok() && options.direct && refuses_direct(file.error())) {
      file = open_to_read(env, path, false);
    }
    opened.files.push_back(HOLDFAST_TRY(std::move(file)));
  }
  return opened;
}

ByteExtent place_of(const ShardFile& file, size_t chunk) {
  if (file.packed.empty()) return {file.chunks[chunk].offset, file.chunks[chunk].bytes};
  return {file.packed[chunk].offset, file.packed[chunk].bytes};
}

Result<ByteView> open_chunk(const ShardFile& file, size_t chunk, ByteView stored,
                            Bytes& unpacked) {
  if (file.packed.empty()) return stored;
  const CompressedChunk& packed = file.packed[chunk];
  if (crc32c(stored) != packed.crc)
    return corrupt("chunk {} does not have the crc of its index", chunk);
  unpacked.resize(static_cast<size_t>(file.chunks[chunk].bytes));
  HOLDFAST_TRY(decompress(stored, packed.width, unpacked));
  return ByteView(unpacked);
}

Result<void> check_chunk(const Path& path, const ShardFile& file,
                         const FoundChunk& found) {
  const Chunk& chunk = file.chunks[found.number];
  const bool too_short = static_cast<int64_t>(found.bytes.size()) < chunk.bytes;
  if (too_short && !file.packed.empty()) {
    const ByteExtent place = place_of(file, found.number);
    return corrupt("{}: chunk {} (bytes {} to {}) cannot be decompressed",
                   path.native(), found.number, place.offset,
                   place.offset + place.bytes);
  }
  if (too_short) {
    return corrupt("{}: ends at byte {}; expected {}", path.native(),
                   chunk.offset + static_cast<int64_t>(found.bytes.size()), file.bytes);
  }
  if (found.crc != chunk.crc) {
    return corrupt("{}: chunk {} (bytes {} to {}) has crc {:08x}; expected {:08x}",
                   path.native(), found.number, chunk.offset,
                   chunk.offset + chunk.bytes, found.crc, chunk.crc);
  }
  return {};
}

Result<void> read_chunks(Env& env, const Path& path, const ShardFile& file,
                         std::span<const size_t> wanted, const VisitChunk& visit,
                         const ReadOptions& options, OpenShard opened) {
  const std::vector<Group> groups = group_chunks(file, wanted, options.block);
  const size_t threads =
      std::clamp<size_t>(static_cast<size_t>(options.threads), 1, groups.size() + 1);
  std::vector<Result<void>> outcomes(threads);
  std::atomic<bool> stop = false;
  const auto read_part = [&](size_t part) {
    const size_t first = groups.size() * part / threads;
    const size_t last = groups.size() * (part + 1) / threads;
    const auto own = std::span(groups).subspan(first, last - first);
    std::unique_ptr<File> held;
    if (part < opened.files.size()) held = std::move(opened.files[part]);
    GroupReader reader(env, path, file, wanted, visit, buffers_for(own, options),
                       std::move(held));
    outcomes[part] = reader.run(own, options, stop);
    if (!outcomes[part].ok()) stop = true;
  };
  {
    std::vector<std::jthread> others;
    for (size_t part = 1; part < threads; ++part) others.emplace_back(read_part, part);
    read_part(0);
  }
  for (Result<void>& outcome : outcomes) {
    if (!outcome.ok()) return std::move(outcome);
  }
  return {};
}

Result<void> read_all_chunks(Env& env, const Path& path, const ShardFile& file,
                             const VisitChunk& visit, const ReadOptions& options) {
  std::vector<size_t> all(file.chunks.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return read_chunks(env, path, file, all, visit, options);
}

ChunkRange chunks_of(const ShardFile& file, int64_t first, int64_t last) {
  if (first >= last) return {};
  const auto begin = std::partition_point(
      file.chunks.begin(), file.chunks.end(),
      [&](const Chunk& chunk) { return chunk.offset + chunk.bytes <= first; });
  const auto end =
      std::partition_point(begin, file.chunks.end(),
                           [&](const Chunk& chunk) { return chunk.offset < last; });
  return {static_cast<size_t>(begin - file.chunks.begin()),
          static_cast<size_t>(end - file.chunks.begin())};
}

}  // namespace holdfast
