// The half of the loop that listens, dials and takes orders. tcp_connection.cpp serves
// the connections.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "holdfast/env/errno_error.h"
#include "holdfast/transport/tcp_loop_internal.h"

namespace holdfast {
namespace {

constexpr size_t kReadBytes = size_t{256} << 10;
// How many connections may be open that have not sent their hello yet, beyond one for
// each rank.
constexpr size_t kStrangers = 256;
// stop() waits for at most so many rounds until all frames are sent.
constexpr int kLingerRounds = 1000;
constexpr int kLingerMs = 1;

void set_number(int socket, int level, int name, int value) {
  // A failure does not matter: these options only make the connection faster, or let it
  // notice the end of a host sooner.
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (open()) ::close(number_);
}

TcpLoop::TcpLoop(int rank, int size, const TcpOptions& options, FrameEvents& events)
    : rank_(rank),
      size_(size),
      options_(options),
      events_(events),
      by_rank_(static_cast<size_t>(size), -1),
      awaited_(size - 1 - rank),
      buffer_(kReadBytes),
      descriptors_(static_cast<size_t>(size) + 3) {
  for (std::atomic<int>& descriptor : descriptors_) descriptor = -1;
}

Result<std::unique_ptr<TcpLoop>> TcpLoop::start(int rank, int size,
                                                const TcpOptions& options,
                                                FrameEvents& events) {
  std::unique_ptr<TcpLoop> loop(new TcpLoop(rank, size, options, events));
  HOLDFAST_TRY(loop->listen());
  HOLDFAST_TRY(loop->make_helpers());
  loop->thread_ = std::jthread([self = loop.get()] { self->run(); });
  return loop;
}

TcpLoop::~TcpLoop() { stop(); }

Result<void> TcpLoop::listen() {
  Result<void> outcome = invalid("host \"{}\": no address", options_.host);
  for (SocketAddress place : HOLDFAST_TRY(places_to_listen(options_.host))) {
    Descriptor socket(
        ::socket(place.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const bool done = socket.open() &&
                      ::bind(socket.number(), place.generic(), place.size) == 0 &&
                      ::listen(socket.number(), SOMAXCONN) == 0 &&
                      ::getsockname(socket.number(), place.generic(), &place.size) == 0;
    if (done) {
      listener_ = std::move(socket);
      address_ = to_text(place);
      return {};
    }
    outcome = errno_error(errno, "listen", to_text(place));
  }
  return outcome;
}

Result<void> TcpLoop::make_helpers() {
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.open()) return errno_error(errno, "epoll", address_);
  wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.open()) return errno_error(errno, "eventfd", address_);
  const auto first = static_cast<size_t>(size_);
  descriptors_[first] = epoll_.number();
  descriptors_[first + 1] = wake_.number();
  descriptors_[first + 2] = listener_.number();
  watch(wake_.number(), EPOLLIN, EPOLL_CTL_ADD);
  watch(listener_.number(), EPOLLIN, EPOLL_CTL_ADD);
  listening_ = true;
  stop_listening_if_complete();
  return {};
}

void TcpLoop::watch(int descriptor, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  const int failed = ::epoll_ctl(epoll_.number(), operation, descriptor, &event);
  HOLDFAST_CHECK(failed == 0, "epoll_ctl {}: {}", operation, text_of_errno(errno));
}

void TcpLoop::wake() {
  const uint64_t one = 1;
  // The write fails only if the counter is full, and then the thread is awake already.
  static_cast<void>(!::write(wake_.number(), &one, sizeof one));
}

void TcpLoop::dial(int rank, const SocketAddress& address) {
  MutexLock lock(mutex_);
  dials_.emplace_back(rank, address);
  wake();
}

void TcpLoop::send(int rank, Outgoing frame) {
  MutexLock lock(mutex_);
  outgoing_.emplace_back(rank, std::move(frame));
  wake();
}

void TcpLoop::stop() {
  MutexLock stopping(stop_mutex_);
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake();
  }
  thread_.join();
}

void TcpLoop::close_in_child() {
  for (std::atomic<int>& descriptor : descriptors_) {
    const int open = descriptor.exchange(-1);
    if (open >= 0) ::close(open);
  }
}

void TcpLoop::run() {
  bool stopping = false;
  int rounds = 0;
  std::array<epoll_event, 64> events{};
  while (!stopping || (!all_delivered() && rounds++ < kLingerRounds)) {
    const int count =
        ::epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()),
                     stopping ? kLingerMs : -1);
    HOLDFAST_CHECK(count >= 0 || errno == EINTR, "epoll: {}", text_of_errno(errno));
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.fd == wake_.number()) {
        uint64_t times = 0;
        static_cast<void>(!::read(wake_.number(), &times, sizeof times));
      } else if (event.data.fd == listener_.number()) {
        accept_all();
      } else {
        serve(event.data.fd, event.events);
      }
    }
    stopping = carry_out_orders();
  }
  // The thread itself closes all connections here, so that no peer sees this rank gone
  // while another connection still works.
  while (!connections_.empty()) close(connections_.begin()->second, "closed");
}

// Returns true if no more orders will come.
bool TcpLoop::carry_out_orders() {
  std::vector<std::pair<int, SocketAddress>> dials;
  std::vector<std::pair<int, Outgoing>> outgoing;
  bool stopping = false;
  {
    MutexLock lock(mutex_);
    dials.swap(dials_);
    outgoing.swap(outgoing_);
    stopping = stopping_;
  }
  for (const auto& [rank, address] : dials) begin_dial(rank, address);
  for (auto& [rank, frame] : outgoing) {
    const int descriptor = by_rank_[static_cast<size_t>(rank)];
    if (descriptor < 0) continue;
    Connection& connection = connections_.at(descriptor);
    connection.sending.push_back(std::move(frame));
    if (!connection.wants_room) flush(connection);
  }
  return stopping;
}

// True if the systems of all peers have all bytes. Closing a connection earlier may
// throw bytes away. A connection that has nothing more to send is shut down for
// writing, because the peer's system then confirms what it has at once.
bool TcpLoop::all_delivered() {
  bool all = true;
  for (auto& [descriptor, connection] : connections_) {
    if (connection.stage != Stage::kUp) continue;
    if (connection.sending.empty() && !std::exchange(connection.ended, true)) {
      static_cast<void>(::shutdown(descriptor, SHUT_WR));
    }
    int left = 0;
    if (::ioctl(descriptor, SIOCOUTQ, &left) != 0) left = 0;
    all = all && connection.ended && left == 0;
  }
  return all;
}

void TcpLoop::accept_all() {
  while (listener_.open() && accept_one()) continue;
}

bool TcpLoop::accept_one() {
  Descriptor socket(
      ::accept4(listener_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.open()) {
    add(std::move(socket));
    drop_oldest_stranger();
    return true;
  }
  if (errno == EINTR || errno == ECONNABORTED) return true;
  if (!is_temporary(errno) && listening_) {
    // The process has no descriptor left. The listener is watched again when a
    // connection closes; trying again at once would only use up the processor.
    watch(listener_.number(), 0, EPOLL_CTL_MOD);
    listening_ = false;
  }
  return false;
}

void TcpLoop::drop_oldest_stranger() {
  Connection* oldest = nullptr;
  size_t strangers = 0;
  for (auto& [descriptor, connection] : connections_) {
    if (connection.peer >= 0) continue;
    ++strangers;
    if (oldest == nullptr || connection.serial < oldest->serial) oldest = &connection;
  }
  if (strangers > kStrangers + static_cast<size_t>(size_)) close(*oldest, "stranger");
}

TcpLoop::Connection& TcpLoop::add(Descriptor socket) {
  const int descriptor = socket.number();
  set_options(descriptor);
  watch(descriptor, EPOLLIN, EPOLL_CTL_ADD);
  const auto [place, added] = connections_.emplace(
      descriptor, Connection{.socket = std::move(socket),
                             .address = {},
                             .hello = {},
                             .reader = FrameReader(options_.most_bytes),
                             .sending = {},
                             .serial = serial_++});
  HOLDFAST_CHECK(added, "descriptor {} twice", descriptor);
  return place->second;
}

void TcpLoop::set_options(int socket) const {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.silence).count();
  const int silence = static_cast<int>(std::clamp<int64_t>(ms, 1000, 86'400'000));
  set_number(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_number(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_number(socket, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, silence / 2000));
  set_number(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, silence / 8000));
  set_number(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_number(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, silence);
}

void TcpLoop::begin_dial(int rank, const SocketAddress& address) {
  Descriptor socket(
      ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const std::string where = to_text(address);
  if (!socket.open()) {
    return events_.on_gone(rank, where + ": " + text_of_errno(errno));
  }
  const int failed = ::connect(socket.number(), address.generic(), address.size);
  if (failed != 0 && errno != EINPROGRESS && errno != EINTR) {
    return events_.on_gone(rank, where + ": " + text_of_errno(errno));
  }
  Connection& connection = add(std::move(socket));
  connection.stage = Stage::kConnecting;
  connection.peer = rank;
  connection.dialed = true;
  connection.address = where;
  watch(connection.socket.number(), EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
}

// Closes the listener once all ranks that dial this one have dialed: nobody else needs
// it.
void TcpLoop::stop_listening_if_complete() {
  if (awaited_ > 0 || !listener_.open()) return;
  descriptors_.back() = -1;
  listener_ = Descriptor();
}

}  // namespace holdfast
