#include "holdfast/transport/mailbox.h"

namespace holdfast {

Result<void> Mailbox::wait_until_connected(Instant deadline) {
  MutexLock lock(mutex_);
  while (true) {
    const std::string left = missing();
    if (left.empty()) return {};
    for (int peer = 0; peer < size_; ++peer) HOLDFAST_TRY(check_alive(peer));
    if (env_.now() >= deadline) {
      return timed_out("rank {}: not connected to {}", rank_, left);
    }
    env_.wait_until(changed_, mutex_, deadline);
  }
}

// Says which ranks are not connected yet: their count, and the numbers of the first
// five. Empty if all are connected.
std::string Mailbox::missing() {
  constexpr int kNamed = 5;
  std::string text;
  int count = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (at(peer).up) continue;
    if (++count <= kNamed) text += fmt::format("{}{}", count == 1 ? "" : ", ", peer);
  }
  if (count == 0) return "";
  return fmt::format("{} of {} ranks: {}{}", count, size_, text,
                     count > kNamed ? ", ..." : "");
}

void Mailbox::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  loop_->stop();
}

Result<void> Mailbox::check_alive(int peer) {
  if (closed_) return unavailable("rank {}: the transport is closed", rank_);
  if (at(peer).gone.has_value()) {
    return unavailable("rank {}: rank {} is gone: {}", rank_, peer, *at(peer).gone);
  }
  return {};
}

Result<void> Mailbox::wait_for_room(int to, int64_t tag, size_t size,
                                    Instant deadline) {
  check_rank(to);
  if (size > static_cast<size_t>(most_bytes_)) {
    return invalid("rank {}: message of {} bytes, limit {}", rank_, size, most_bytes_);
  }
  // Messages of collective calls have no limit: those calls wait for each other anyway.
  const bool own = tag >= 0;
  HOLDFAST_TRY(check_alive(to));
  while (!at(to).up || (own && !at(to).unreceived.has_room(tag, size, queue_))) {
    if (env_.now() >= deadline) {
      if (!at(to).up) return timed_out("rank {}: not connected to rank {}", rank_, to);
      return timed_out("rank {}: send to rank {}, tag {}: queue of {} is full", rank_,
                       to, tag, queue_.messages);
    }
    env_.wait_until(changed_, mutex_, deadline);
    HOLDFAST_TRY(check_alive(to));
  }
  if (own) at(to).unreceived.add(tag, size);
  return {};
}

Result<void> Mailbox::send(int to, int64_t tag,
                           const std::shared_ptr<const Bytes>& bytes,
                           Instant deadline) {
  MutexLock lock(mutex_);
  HOLDFAST_TRY(wait_for_room(to, tag, bytes->size(), deadline));
  if (to == rank_) {
    inbox_.put(to, tag, *bytes);
    changed_.notify_all();
  } else {
    loop_->send(to, encode_frame(FrameKind::kMessage, tag, bytes));
  }
  return {};
}

Result<void> Mailbox::send_in_place(int to, int64_t tag, ByteView bytes,
                                    Instant deadline) {
  if (to == rank_) {
    return send(to, tag, std::make_shared<const Bytes>(copy_of(bytes)), deadline);
  }
  const auto lent = std::make_shared<LentBytes>(bytes);
  {
    MutexLock lock(mutex_);
    HOLDFAST_TRY(wait_for_room(to, tag, bytes.size(), deadline));
    loop_->send(to, lend_message(tag, lent));
  }
  if (lent->wait(env_, deadline)) return {};
  return timed_out("rank {}: send to rank {}, tag {}: {} bytes were not sent in time",
                   rank_, to, tag, bytes.size());
}

Result<void> Mailbox::wait_for_message(int from, int64_t tag, Landing* landing,
                                       Instant deadline) {
  while (!inbox_.has(from, tag)) {
    if (landing != nullptr && landing->landed().has_value()) return {};
    HOLDFAST_TRY(check_alive(from));
    if (env_.now() >= deadline) {
      return timed_out("rank {}: no message of tag {} from rank {} in time", rank_, tag,
                       from);
    }
    env_.wait_until(changed_, mutex_, deadline);
  }
  if (closed_) return unavailable("rank {}: the transport is closed", rank_);
  return {};
}

void Mailbox::confirm(int from, int64_t tag) {
  loop_->send(from, encode_frame(FrameKind::kReceived, tag));
}

Result<std::optional<size_t>> Mailbox::land(int from, int64_t tag, ByteSpan into,
                                            Instant deadline) {
  check_rank(from);
  const auto landing = std::make_shared<Landing>(into);
  MutexLock lock(mutex_);
  if (from != rank_) landings_.try_emplace({from, tag}, landing);
  const Result<void> arrived = wait_for_message(from, tag, landing.get(), deadline);
  std::erase_if(landings_, [&](const auto& one) { return one.second == landing; });
  const std::optional<size_t> size = landing->landed();
  if (size.has_value()) return size;
  landing->leave();
  if (!arrived.ok()) return arrived.error();
  return std::optional<size_t>();
}

Result<Bytes> Mailbox::recv(int from, int64_t tag, Instant deadline) {
  check_rank(from);
  MutexLock lock(mutex_);
  HOLDFAST_TRY(wait_for_message(from, tag, nullptr, deadline));
  Bytes message = inbox_.take_message(from, tag);
  if (tag >= 0 && from == rank_) {
    at(from).unreceived.remove(tag);
    changed_.notify_all();
  } else if (tag >= 0) {
    confirm(from, tag);
  }
  return message;
}

Result<std::vector<Bytes>> Mailbox::gather(const Transport& self, ByteView bytes,
                                           Instant deadline) {
  const int64_t tag = [&] {
    MutexLock lock(mutex_);
    return inbox_.begin_collective();
  }();
  const auto mine = std::make_shared<const Bytes>(copy_of(bytes));
  return gather_from_all(
      env_, self, deadline, [&](int to) { return send(to, tag, mine, deadline); },
      [&](int from, Instant until) { return recv(from, tag, until); });
}

void Mailbox::on_up(int rank) {
  MutexLock lock(mutex_);
  at(rank).up = true;
  changed_.notify_all();
}

Result<void> Mailbox::on_frame(int rank, Frame frame) {
  MutexLock lock(mutex_);
  if (frame.kind == FrameKind::kMessage && frame.landing != nullptr) {
    std::optional<Bytes> elsewhere = frame.landing->finish();
    if (!elsewhere.has_value()) {
      confirm(rank, frame.number);
      changed_.notify_all();
      return {};
    }
    frame.bytes = *std::move(elsewhere);
  }
  if (frame.kind == FrameKind::kMessage) {
    // A receiver that waits takes this message, so that the next must not land there.
    landings_.erase({rank, frame.number});
    if (frame.number >= 0 &&
        !inbox_.waiting(rank).has_room(frame.number, frame.bytes.size(), queue_)) {
      return invalid("more than {} messages or {} bytes of tag {} wait to be received",
                     queue_.messages, queue_.bytes, frame.number);
    }
    inbox_.put(rank, frame.number, std::move(frame.bytes));
  } else if (!at(rank).unreceived.remove(frame.number)) {
    return invalid("a message of tag {} confirmed, but none was on its way",
                   frame.number);
  }
  changed_.notify_all();
  return {};
}

std::shared_ptr<Landing> Mailbox::find_landing(int rank, int64_t tag, size_t length) {
  MutexLock lock(mutex_);
  const auto found = landings_.find({rank, tag});
  if (found == landings_.end() || found->second->most() < length) return nullptr;
  if (inbox_.has(rank, tag)) return nullptr;  // an older message comes first
  std::shared_ptr<Landing> landing = std::move(found->second);
  landings_.erase(found);
  return landing;
}

void Mailbox::on_gone(int rank, const std::string& why) {
  MutexLock lock(mutex_);
  at(rank).gone = why;
  changed_.notify_all();
}

}  // namespace holdfast
