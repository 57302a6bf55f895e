// Addresses of sockets: as text, and which one is ours.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  int family() const { return storage.ss_family; }
  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* generic() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

// "10.0.0.7:43117", "[fd00::7]:43117".
std::string to_text(const SocketAddress& address);
// Reads that; numbers only. kInvalid for anything else.
Result<SocketAddress> parse_address(std::string_view text);

// Where to listen, the best first, with port 0: what the name stands for (kInvalid if
// nothing), or for an empty one the addresses by which others may reach this host, and
// loopback last.
Result<std::vector<SocketAddress>> places_to_listen(const std::string& host);

}  // namespace holdfast
