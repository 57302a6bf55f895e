#include "bare_copies.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "figures.h"
#include "holdfast/base/result.h"

namespace holdfast {
namespace {

constexpr size_t kWindow = static_cast<size_t>(SharedRing::kSlotBytes);

// A connection over loopback; [0] listens for [1].
std::pair<int, int> connect_bare() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  HOLDFAST_CHECK(::bind(listener, plain, size) == 0, "bind");
  HOLDFAST_CHECK(::listen(listener, 1) == 0, "listen");
  HOLDFAST_CHECK(::getsockname(listener, plain, &size) == 0, "getsockname");
  const int one = ::socket(AF_INET, SOCK_STREAM, 0);
  HOLDFAST_CHECK(::connect(one, plain, size) == 0, "connect");
  const int other = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  return {one, other};
}

}  // namespace

void copy_by_threads(int threads, ByteView from, ByteSpan to) {
  const size_t part = from.size() / static_cast<size_t>(threads);
  on_each(threads, [&](int i) {
    const size_t at = part * static_cast<size_t>(i);
    std::memcpy(to.data() + at, from.data() + at, part);
  });
}

void send_through(SharedRing& ring, ByteView from) {
  for (size_t at = 0; at < from.size(); at += kWindow) {
    ByteSpan slot;
    while (slot.empty()) slot = ring.free_slot();
    std::memcpy(slot.data(), from.data() + at, std::min(kWindow, from.size() - at));
    ring.publish();
  }
}

void receive_through(SharedRing& ring, ByteSpan to) {
  for (size_t at = 0; at < to.size(); at += kWindow) {
    ByteView slot;
    while (slot.empty()) slot = ring.filled_slot();
    std::memcpy(to.data() + at, slot.data(), std::min(kWindow, to.size() - at));
    ring.release();
  }
}

void copy_over_tcp(ByteView from, ByteSpan to) {
  const auto [one, other] = connect_bare();
  std::jthread sender([&, descriptor = one] {
    for (size_t at = 0; at < from.size();) {
      const size_t size = std::min(from.size() - at, size_t{1} << 20);
      const ssize_t sent = ::write(descriptor, from.data() + at, size);
      HOLDFAST_CHECK(sent > 0, "write");
      at += static_cast<size_t>(sent);
    }
  });
  for (size_t at = 0; at < to.size();) {
    const ssize_t got = ::read(other, to.data() + at, to.size() - at);
    HOLDFAST_CHECK(got > 0, "read");
    at += static_cast<size_t>(got);
  }
  sender.join();
  ::close(one);
  ::close(other);
}

}  // namespace holdfast
