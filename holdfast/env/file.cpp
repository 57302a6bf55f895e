#include "holdfast/env/file.h"

namespace holdfast {
namespace {

bool is_aligned(int64_t offset, ByteView memory) {
  constexpr auto kMask = static_cast<uint64_t>(kDirectAlignment - 1);
  return ((static_cast<uint64_t>(offset) | memory.size() |
           reinterpret_cast<uintptr_t>(memory.data())) &
          kMask) == 0;
}

}  // namespace

Result<void> File::check_transfer(const char* what, int64_t offset,
                                  ByteView memory) const {
  HOLDFAST_CHECK(mode() != OpenMode::kAppend, "{}: {} of an append-only file",
                 path_.native(), what);
  if (offset < 0) {
    return invalid("{}: {} at offset {}; expected 0 or more", path_.native(), what,
                   offset);
  }
  if (direct() && !is_aligned(offset, memory)) {
    return invalid(
        "{}: direct {} of {} bytes at offset {} and address {}; expected multiples of "
        "{}",
        path_.native(), what, memory.size(), offset,
        static_cast<const void*>(memory.data()), kDirectAlignment);
  }
  return {};
}

Result<void> File::check_read(int64_t offset, ByteView memory) const {
  return check_transfer("read", offset, memory);
}

Result<void> File::check_write(int64_t offset, ByteView bytes) const {
  HOLDFAST_TRY(check_transfer("write", offset, bytes));
  HOLDFAST_CHECK(mode() != OpenMode::kRead, "{}: write to a file opened to read",
                 path_.native());
  return {};
}

Result<size_t> File::read_at(int64_t offset, ByteSpan into) {
  HOLDFAST_TRY(check_read(offset, into));
  size_t done = 0;
  while (done < into.size()) {
    const size_t count = HOLDFAST_TRY(
        read_some(offset + static_cast<int64_t>(done), into.subspan(done)));
    if (count == 0) break;
    done += count;
    // A direct read ends within a block only at the end of the file, and no aligned
    // read could go on from there.
    if (direct() && count % kDirectAlignment != 0) break;
  }
  return done;
}

Result<size_t> File::write_whole(int64_t offset, ByteView bytes) {
  HOLDFAST_TRY(check_write(offset, bytes));
  size_t done = 0;
  while (done < bytes.size()) {
    size_t count = HOLDFAST_TRY(
        write_some(offset + static_cast<int64_t>(done), bytes.subspan(done)));
    // A direct write must go on at a block boundary, so it writes the last, incomplete
    // block again.
    if (direct()) count -= count % static_cast<size_t>(kDirectAlignment);
    if (count == 0) {
      return io_error("{}: write at {} made no progress", path_.native(), offset);
    }
    done += count;
  }
  return done;
}

Result<void> File::write_at(int64_t offset, ByteView bytes) {
  HOLDFAST_TRY(write_whole(offset, bytes));
  return {};
}

Result<void> File::append(ByteView bytes) {
  HOLDFAST_CHECK(mode() == OpenMode::kAppend, "{}: append to a file not opened for it",
                 path_.native());
  while (!bytes.empty()) {
    const size_t count = HOLDFAST_TRY(append_some(bytes));
    if (count == 0) return io_error("{}: append made no progress", path_.native());
    bytes = bytes.subspan(count);
  }
  return {};
}

Ticket File::put_off(Transfer transfer) {
  MutexLock lock(mutex_);
  submitted_.emplace(++last_id_, std::move(transfer));
  return {last_id_};
}

Ticket File::submit_read(int64_t offset, ByteSpan into) {
  return put_off([this, offset, into] { return read_at(offset, into); });
}

Ticket File::submit_write(int64_t offset, ByteView bytes) {
  return put_off([this, offset, bytes] { return write_whole(offset, bytes); });
}

File::Transfer File::remove_transfer(Ticket ticket) {
  MutexLock lock(mutex_);
  const auto node = submitted_.extract(ticket.id);
  HOLDFAST_CHECK(!node.empty(), "{}: no ticket {}", path_.native(), ticket.id);
  return std::move(node.mapped());
}

Result<size_t> File::wait(Ticket ticket) { return remove_transfer(ticket)(); }

std::map<uint64_t, File::Transfer> File::remove_all_transfers() {
  MutexLock lock(mutex_);
  return std::exchange(submitted_, {});
}

Result<void> File::drain() {
  Result<void> outcome;
  for (const auto& [id, transfer] : remove_all_transfers()) {
    Result<size_t> one = transfer();
    if (outcome.ok() && !one.ok()) outcome = std::move(one).error();
  }
  return outcome;
}

Result<bool> File::try_lock(LockKind) {
  return unsupported("{}: this kind of file has no locks", path_.native());
}

Result<void> File::close() {
  Result<void> drained = drain();
  Result<void> closed = close_handle();
  return drained.ok() ? closed : drained;
}

}  // namespace holdfast
