#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>

#include "holdfast/base/number_text.h"
#include "holdfast/transport/tcp_address_internal.h"

namespace holdfast {
namespace {

struct FreeInfo {
  void operator()(addrinfo* info) const { ::freeaddrinfo(info); }
};
struct FreeInterfaces {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

SocketAddress copy_of(const sockaddr* from, socklen_t size) {
  SocketAddress address;
  std::memcpy(&address.storage, from, size);
  address.size = size;
  return address;
}

// The internet addresses that getaddrinfo finds, in its order.
Result<std::vector<SocketAddress>> look_up(const std::string& host,
                                           const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) return invalid("\"{}\": {}", host, ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, FreeInfo> owner(found);
  std::vector<SocketAddress> addresses;
  for (; found != nullptr; found = found->ai_next) {
    if (found->ai_family != AF_INET && found->ai_family != AF_INET6) continue;
    addresses.push_back(copy_of(found->ai_addr, found->ai_addrlen));
  }
  if (addresses.empty()) return invalid("\"{}\": no internet address", host);
  return addresses;
}

bool is_reachable(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&address.storage);
    return (ntohl(in->sin_addr.s_addr) >> 24) != IN_LOOPBACKNET;
  }
  const auto* in = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  return !IN6_IS_ADDR_LOOPBACK(&in->sin6_addr) &&
         !IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr);
}

void add_reachable(const std::vector<SocketAddress>& from,
                   std::vector<SocketAddress>& to) {
  for (const SocketAddress& address : from) {
    if (is_reachable(address)) to.push_back(address);
  }
}

std::vector<SocketAddress> named_addresses() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  const auto found = look_up(name.data(), "0", AI_NUMERICSERV);
  return found.ok() ? *found : std::vector<SocketAddress>();
}

std::vector<SocketAddress> interface_addresses(int family) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, FreeInterfaces> owner(list);
  std::vector<SocketAddress> addresses;
  for (; list != nullptr; list = list->ifa_next) {
    if (list->ifa_addr == nullptr || list->ifa_addr->sa_family != family) continue;
    if ((list->ifa_flags & IFF_UP) == 0) continue;
    addresses.push_back(copy_of(list->ifa_addr, family == AF_INET
                                                    ? sizeof(sockaddr_in)
                                                    : sizeof(sockaddr_in6)));
  }
  return addresses;
}

}  // namespace

std::string to_text(const SocketAddress& address) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int failed =
      ::getnameinfo(address.generic(), address.size, host.data(), host.size(),
                    port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (failed != 0) return "?";
  if (address.family() == AF_INET)
    return fmt::format("{}:{}", host.data(), port.data());
  return fmt::format("[{}]:{}", host.data(), port.data());
}

Result<SocketAddress> parse_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != host.npos) {
    host = {};
  }
  const std::string_view port =
      colon == text.npos ? std::string_view() : text.substr(colon + 1);
  // Checked here: getaddrinfo accepts ports that are too large.
  if (!number_in<uint16_t>(port) || host.empty() || host.find('\0') != host.npos) {
    return invalid("address \"{}\": not an address; expected host:port", text);
  }
  const auto found =
      look_up(std::string(host), std::string(port), AI_NUMERICHOST | AI_NUMERICSERV);
  if (!found.ok()) return found.error().within(fmt::format("address \"{}\"", text));
  return found->front();
}

Result<std::vector<SocketAddress>> places_to_listen(const std::string& host) {
  if (!host.empty()) return look_up(host, "0", AI_NUMERICSERV).within("host");
  std::vector<SocketAddress> places;
  add_reachable(named_addresses(), places);
  add_reachable(interface_addresses(AF_INET), places);
  add_reachable(interface_addresses(AF_INET6), places);
  for (const SocketAddress& loopback :
       HOLDFAST_TRY(look_up("127.0.0.1", "0", AI_NUMERICHOST | AI_NUMERICSERV))) {
    places.push_back(loopback);
  }
  return places;
}

}  // namespace holdfast
