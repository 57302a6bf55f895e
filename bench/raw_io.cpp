#include "bench/raw_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>

#include "holdfast/env/errno_error.h"

namespace holdfast {
namespace {

using Clock = std::chrono::steady_clock;

double rate(int64_t bytes, Clock::time_point start) {
  const std::chrono::duration<double> took = Clock::now() - start;
  return static_cast<double>(bytes) / took.count();
}

Result<void> check(const RawShape& shape, size_t memory) {
  if (shape.block <= 0 || shape.depth <= 0 || shape.bytes % shape.block != 0) {
    return invalid(
        "raw: {} bytes in blocks of {}, {} in flight; expected whole blocks and "
        "numbers above 0",
        shape.bytes, shape.block, shape.depth);
  }
  if (static_cast<int64_t>(memory) < shape.block * shape.depth) {
    return invalid("raw: {} bytes of memory; expected {} blocks of {}", memory,
                   shape.depth, shape.block);
  }
  return {};
}

// The part of `memory` that the block at `offset` of the file is copied from or to.
template <typename Span>
Span block_at(const RawShape& shape, Span memory, int64_t offset) {
  const int64_t blocks = static_cast<int64_t>(memory.size()) / shape.block;
  const int64_t at = offset / shape.block % blocks * shape.block;
  return memory.subspan(static_cast<size_t>(at), static_cast<size_t>(shape.block));
}

Result<void> wait_whole(File& file, Ticket ticket, int64_t block) {
  const size_t count = HOLDFAST_TRY(file.wait(ticket));
  if (count == static_cast<size_t>(block)) return {};
  return corrupt("{}: a block of {} bytes; expected {}", file.path().native(), count,
                 block);
}

// Calls `submit` with the offset of each block and keeps `depth` blocks in flight.
template <typename Submit>
Result<void> run(File& file, const RawShape& shape, Submit submit) {
  std::deque<Ticket> tickets;
  for (int64_t offset = 0; offset < shape.bytes; offset += shape.block) {
    if (std::ssize(tickets) == shape.depth) {
      HOLDFAST_TRY(wait_whole(file, tickets.front(), shape.block));
      tickets.pop_front();
    }
    tickets.push_back(submit(offset));
  }
  for (const Ticket ticket : tickets) {
    HOLDFAST_TRY(wait_whole(file, ticket, shape.block));
  }
  return {};
}

Result<void> allocate(File& file, int64_t bytes) {
  Result<void> allocated = file.allocate(bytes);
  if (!allocated.ok() && allocated.error().code() == ErrorCode::kUnsupported) return {};
  return allocated;
}

class Descriptor {
 public:
  Descriptor(const Path& path, int flags)
      : number_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int operator*() const { return number_; }

 private:
  const int number_;
};

// Calls `transfer` with the offset of each block. Fails if it transfers only a part of
// the block.
template <typename Transfer>
Result<void> run_plain(const Path& path, const RawShape& shape, Transfer transfer) {
  for (int64_t offset = 0; offset < shape.bytes; offset += shape.block) {
    const ssize_t count = transfer(offset);
    if (count < 0) return errno_error(errno, "transfer", path);
    if (count != shape.block) {
      return io_error("{}: {} bytes at {}; expected {}", path.native(), count, offset,
                      shape.block);
    }
  }
  return {};
}

}  // namespace

AlignedBytes make_noise(int64_t bytes) {
  AlignedBytes noise(static_cast<size_t>(bytes));
  std::mt19937_64 engine(1);
  for (size_t i = 0; i + 8 <= noise.size(); i += 8) {
    const uint64_t word = engine();
    std::memcpy(noise.span().data() + i, &word, sizeof word);
  }
  return noise;
}

Result<double> measure_raw_write(Env& env, const Path& path, const RawShape& shape,
                                 ByteView memory) {
  HOLDFAST_TRY(check(shape, memory.size()));
  HOLDFAST_TRY(env.remove_all(path));
  const auto start = Clock::now();
  const auto file =
      HOLDFAST_TRY(env.open(path, {.mode = OpenMode::kCreate, .direct = shape.direct}));
  HOLDFAST_TRY(allocate(*file, shape.bytes));
  HOLDFAST_TRY(run(*file, shape, [&](int64_t offset) {
    return file->submit_write(offset, block_at(shape, memory, offset));
  }));
  HOLDFAST_TRY(file->sync_data());
  HOLDFAST_TRY(file->close());
  return rate(shape.bytes, start);
}

Result<double> measure_raw_read(Env& env, const Path& path, const RawShape& shape,
                                ByteSpan memory) {
  HOLDFAST_TRY(check(shape, memory.size()));
  const auto start = Clock::now();
  const auto file = HOLDFAST_TRY(env.open(path, {.direct = shape.direct}));
  HOLDFAST_TRY(run(*file, shape, [&](int64_t offset) {
    return file->submit_read(offset, block_at(shape, memory, offset));
  }));
  HOLDFAST_TRY(file->close());
  return rate(shape.bytes, start);
}

Result<double> measure_raw_copy(Env& env, const Path& from, const Path& to,
                                const RawShape& shape, ByteSpan memory) {
  HOLDFAST_TRY(check(shape, memory.size()));
  HOLDFAST_TRY(env.remove_all(to));
  const auto start = Clock::now();
  const auto source = HOLDFAST_TRY(env.open(from, {.direct = shape.direct}));
  const auto target =
      HOLDFAST_TRY(env.open(to, {.mode = OpenMode::kCreate, .direct = shape.direct}));
  HOLDFAST_TRY(allocate(*target, shape.bytes));
  // A block of memory is read again when the write from it is done.
  std::deque<std::pair<int64_t, Ticket>> reads, writes;
  int64_t next = 0;
  while (next < shape.bytes || !reads.empty()) {
    while (next < shape.bytes && std::ssize(reads) + std::ssize(writes) < shape.depth) {
      const ByteSpan block = block_at(shape, memory, next);
      reads.emplace_back(next, source->submit_read(next, block));
      next += shape.block;
    }
    if (!reads.empty()) {
      const auto [offset, ticket] = reads.front();
      reads.pop_front();
      HOLDFAST_TRY(wait_whole(*source, ticket, shape.block));
      writes.emplace_back(
          offset, target->submit_write(offset, block_at(shape, memory, offset)));
    }
    if (std::ssize(reads) + std::ssize(writes) >= shape.depth) {
      HOLDFAST_TRY(wait_whole(*target, writes.front().second, shape.block));
      writes.pop_front();
    }
  }
  for (const auto& [offset, ticket] : writes) {
    HOLDFAST_TRY(wait_whole(*target, ticket, shape.block));
  }
  HOLDFAST_TRY(target->sync_data());
  HOLDFAST_TRY(target->close());
  return rate(shape.bytes, start);
}

Result<double> measure_plain_write(const Path& path, const RawShape& shape,
                                   ByteView memory) {
  HOLDFAST_TRY(check(shape, memory.size()));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return errno_error(errno, "remove", path);
  }
  const auto start = Clock::now();
  const int direct = shape.direct ? O_DIRECT : 0;
  const Descriptor file(path, O_RDWR | O_CREAT | O_EXCL | direct);
  if (*file < 0) return errno_error(errno, "open", path);
  if (::fallocate(*file, 0, 0, shape.bytes) != 0 && errno != EOPNOTSUPP) {
    return errno_error(errno, "allocate", path);
  }
  HOLDFAST_TRY(run_plain(path, shape, [&](int64_t offset) {
    const ByteView block = block_at(shape, memory, offset);
    return ::pwrite(*file, block.data(), block.size(), offset);
  }));
  if (::fdatasync(*file) != 0) return errno_error(errno, "sync", path);
  return rate(shape.bytes, start);
}

Result<double> measure_plain_read(const Path& path, const RawShape& shape,
                                  ByteSpan memory) {
  HOLDFAST_TRY(check(shape, memory.size()));
  const auto start = Clock::now();
  const Descriptor file(path, O_RDONLY | (shape.direct ? O_DIRECT : 0));
  if (*file < 0) return errno_error(errno, "open", path);
  HOLDFAST_TRY(run_plain(path, shape, [&](int64_t offset) {
    const ByteSpan block = block_at(shape, memory, offset);
    return ::pread(*file, block.data(), block.size(), offset);
  }));
  return rate(shape.bytes, start);
}

Result<void> forget(const Path& path) {
  const Descriptor file(path, O_RDONLY);
  if (*file < 0) return errno_error(errno, "open", path);
  const int number = ::posix_fadvise(*file, 0, 0, POSIX_FADV_DONTNEED);
  if (number != 0) return errno_error(number, "forget", path);
  const Descriptor caches("/proc/sys/vm/drop_caches", O_WRONLY);
  if (*caches >= 0) (void)!::write(*caches, "1", 1);
  return {};
}

}  // namespace holdfast
