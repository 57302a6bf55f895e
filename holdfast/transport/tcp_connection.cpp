// The half of the loop that serves a connection: dial, hello, frames in and out, close.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "holdfast/transport/tcp_loop_internal.h"

namespace holdfast {
namespace {

// How often one connection is read before others have their turn.
constexpr int kReadsAtOnce = 8;

// Sends what the socket takes of the frame's head, or of its body if the head was sent.
ssize_t send_part(int descriptor, const Outgoing& frame, size_t sent) {
  const auto send = [&](ByteView from, size_t at, int more) {
    const ByteView part = from.subspan(at);
    return ::send(descriptor, part.data(), part.size(), MSG_NOSIGNAL | more);
  };
  const size_t head = frame.head.size();
  if (sent < head) return send(frame.head, sent, frame.body_size() > 0 ? MSG_MORE : 0);
  if (frame.lent == nullptr) return send(*frame.body, sent - head, 0);
  return frame.lent->use([&](ByteView body) { return send(body, sent - head, 0); });
}

}  // namespace

void TcpLoop::serve(int descriptor, uint32_t events) {
  const auto found = connections_.find(descriptor);
  if (found == connections_.end()) return;  // closed a moment ago
  Connection& connection = found->second;
  if (connection.stage == Stage::kConnecting && !finish_dial(connection)) return;
  if ((events & EPOLLOUT) != 0) flush(connection);
  if ((events & ~uint32_t{EPOLLOUT}) != 0) static_cast<void>(receive(connection));
}

bool TcpLoop::finish_dial(Connection& connection) {
  int failed = 0;
  socklen_t size = sizeof failed;
  if (::getsockopt(connection.socket.number(), SOL_SOCKET, SO_ERROR, &failed, &size) !=
      0) {
    failed = errno;
  }
  if (failed != 0) {
    close(connection, text_of_errno(failed));
    return false;
  }
  connection.stage = Stage::kHello;
  connection.wants_room = true;  // begin_dial() watches the socket for room
  connection.sending.push_back(
      {.head = encode_hello(options_.token, rank_, size_), .body = nullptr});
  return true;
}

bool TcpLoop::receive(Connection& connection) {
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t count =
        ::recv(connection.socket.number(), buffer_.data(), buffer_.size(), 0);
    if (count < 0 && is_temporary(errno)) return true;
    if (count <= 0) {
      close(connection,
            count == 0 ? "the peer closed the connection" : text_of_errno(errno));
      return false;
    }
    ByteView bytes = ByteView(buffer_).first(static_cast<size_t>(count));
    if (connection.stage != Stage::kUp && !read_hello(connection, bytes)) return false;
    if (!read_frames(connection, bytes)) return false;
  }
  return true;
}

// Reads the hello, and removes its bytes from the front of `bytes`.
bool TcpLoop::read_hello(Connection& connection, ByteView& bytes) {
  const size_t part = std::min(bytes.size(), kHelloBytes - connection.hello.size());
  connection.hello.insert(connection.hello.end(), bytes.begin(),
                          bytes.begin() + static_cast<std::ptrdiff_t>(part));
  bytes = bytes.subspan(part);
  if (connection.hello.size() < kHelloBytes) return true;
  const Result<int> rank = decode_hello(connection.hello, options_.token, size_);
  if (!rank.ok()) {
    close(connection, rank.error().message());
    return false;
  }
  if (connection.dialed && *rank != connection.peer) {
    close(connection,
          fmt::format("hello: rank {}; expected rank {}", *rank, connection.peer));
    return false;
  }
  // Only ranks above this one dial it, and each of them dials once.
  if (!connection.dialed &&
      (*rank <= rank_ || by_rank_[static_cast<size_t>(*rank)] != -1)) {
    close(connection,
          fmt::format("hello: rank {} must not dial, or dialed twice", *rank));
    return false;
  }
  connection.peer = *rank;
  return accept_peer(connection);
}

bool TcpLoop::accept_peer(Connection& connection) {
  const int descriptor = connection.socket.number();
  const auto peer = static_cast<size_t>(connection.peer);
  connection.stage = Stage::kUp;
  connection.reader.set_find_landing(
      [this, rank = connection.peer](int64_t tag, size_t length) {
        return events_.find_landing(rank, tag, length);
      });
  by_rank_[peer] = descriptor;
  descriptors_[peer] = descriptor;
  if (!connection.dialed) {
    connection.sending.push_back(
        {.head = encode_hello(options_.token, rank_, size_), .body = nullptr});
    --awaited_;
    stop_listening_if_complete();
    flush(connection);
  }
  events_.on_up(connection.peer);
  return true;
}

bool TcpLoop::read_frames(Connection& connection, ByteView bytes) {
  const Result<void> outcome = connection.reader.feed(bytes, [&](Frame frame) {
    return events_.on_frame(connection.peer, std::move(frame));
  });
  if (outcome.ok()) return true;
  close(connection, outcome.error().message());
  return false;
}

void TcpLoop::flush(Connection& connection) {
  const int descriptor = connection.socket.number();
  bool full = false;
  while (!connection.sending.empty() && !full) {
    const Outgoing& first = connection.sending.front();
    const ssize_t count = send_part(descriptor, first, connection.sent);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && !is_temporary(errno)) {
      connection.sending.clear();  // receive() will notice the end and close
      connection.sent = 0;
      break;
    }
    full = count < 0;
    if (!full) connection.sent += static_cast<size_t>(count);
    if (connection.sent < first.size()) continue;
    connection.sending.pop_front();
    connection.sent = 0;
  }
  if (full == connection.wants_room) return;
  connection.wants_room = full;
  watch(descriptor, full ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

// Closes and destroys the connection, and reports the peer as gone. A stranger, which
// was accepted and sent no hello, is not reported.
void TcpLoop::close(Connection& connection, const std::string& why) {
  const int peer = connection.peer;
  const bool told = connection.dialed || connection.stage == Stage::kUp;
  const std::string where =
      connection.address.empty() ? why : connection.address + ": " + why;
  if (connection.stage == Stage::kUp) {
    by_rank_[static_cast<size_t>(peer)] = -2;  // gone: it may not dial again
    descriptors_[static_cast<size_t>(peer)] = -1;
  }
  connections_.erase(connection.socket.number());
  if (!listening_ && listener_.open()) {
    watch(listener_.number(), EPOLLIN, EPOLL_CTL_MOD);
    listening_ = true;
  }
  if (told) events_.on_gone(peer, where);
}

}  // namespace holdfast
