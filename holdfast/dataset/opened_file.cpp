#include "holdfast/dataset/opened_file.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace holdfast {

Pipe::~Pipe() { close(); }

void Pipe::close() {
  if (in_ < 0) return;
  ::close(in_);
  ::close(out_);
  in_ = out_ = -1;
}

// A reply that was not sent has left its bytes in the pipe.
bool Pipe::is_empty() const {
  int left = 0;
  return in_ >= 0 && ::ioctl(out_, FIONREAD, &left) == 0 && left == 0;
}

bool Pipe::can_hold(int end, size_t most) {
  return ::fcntl(end, F_SETPIPE_SZ, static_cast<int>(2 * most)) >= 0;
}

size_t Pipe::most() {
  static const size_t most = [] {
    constexpr size_t kUsual = 512 << 10;
    Pipe pipe;
    const bool is_long = pipe.open() && can_hold(pipe.in_, 2 * kUsual);
    return is_long ? 2 * kUsual : kUsual;
  }();
  return most;
}

bool Pipe::open() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  out_ = ends[0];
  in_ = ends[1];
  return true;
}

bool Pipe::renew() {
  close();
  return open() && can_hold(in_, most());
}

bool Pipe::fill(int descriptor, int64_t offset, size_t count) {
  if (!is_empty() && !renew()) return false;
  off64_t at = offset;
  while (count > 0) {
    const ssize_t moved = ::splice(descriptor, &at, in_, nullptr, count, SPLICE_F_NONBLOCK);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    count -= static_cast<size_t>(moved);
  }
  return true;
}

Result<size_t> OpenedFile::count_at(int64_t offset, size_t count) {
  const MutexLock lock(mutex_);
  if (source_ != nullptr) HOLDFAST_TRY(corpus_.check_unchanged(source_number_, *source_));
  const int64_t left = std::max<int64_t>(size() - offset, 0);
  return static_cast<size_t>(std::min(left, static_cast<int64_t>(count)));
}

Result<void> OpenedFile::open_source(size_t number) {
  if (source_ != nullptr && source_number_ == number) return {};
  source_ = HOLDFAST_TRY(corpus_.open_file(number));
  source_number_ = number;
  return {};
}

bool OpenedFile::fill(Pipe& pipe, int64_t offset, size_t count) {
  if (is_kept() || count < kLeastFill) return false;
  const std::optional<FileRange> place = file_->place_of(offset, count);
  if (!place) return false;
  std::shared_ptr<const FileSource> source;
  {
    const MutexLock lock(mutex_);
    if (!open_source(place->file).ok()) return false;  // read() says why
    source = source_;
  }
  return source->descriptor() >= 0 && pipe.fill(source->descriptor(), place->begin, count) &&
         corpus_.check_unchanged(place->file, *source).ok();
}

// Reads that follow each other in a scattered file are served from blocks, each of which is
// read at once: the more samples are read together, the more threads have work.
Result<void> OpenedFile::read(int64_t offset, ByteSpan into) {
  const auto read = [&]() -> Result<void> {
    HOLDFAST_TRY(file_->read(offset, into));
    return {};
  };
  if (!file_->is_scattered()) return read();
  const MutexLock lock(mutex_);
  const int64_t begin = offset / kBlock * kBlock;
  const bool is_next = begin == newest_ || begin == newest_ + kBlock;
  newest_ = begin;
  const bool is_inside = offset + std::ssize(into) <= begin + kBlock;
  if (!is_next || !is_inside) return read();
  if (begin != block_at_ && !read_block(begin)) return read();
  std::copy_n(block_.begin() + (offset - begin), into.size(), into.begin());
  return {};
}

// Returns false if a part of the block cannot be read. What was asked for may be another.
bool OpenedFile::read_block(int64_t begin) {
  block_.resize(static_cast<size_t>(kBlock));
  const auto count = file_->read(begin, block_);
  block_.resize(count.ok() ? *count : 0);
  block_at_ = count.ok() ? begin : -1;
  return count.ok();
}

}  // namespace holdfast
