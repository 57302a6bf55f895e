// Addresses of sockets: their text, and the choice of an address to listen at.
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
// Reads what to_text() writes. Host and port must be numbers: anything else is
// kInvalid.
Result<SocketAddress> parse_address(std::string_view text);

// The addresses to try to listen at, the best first, all with port 0. For a host name:
// the addresses of that name (kInvalid if it has none). For an empty name: the
// addresses by which other hosts may reach this one, and loopback last.
Result<std::vector<SocketAddress>> places_to_listen(const std::string& host);

}  // namespace holdfast
