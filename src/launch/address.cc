// Finds the addresses of this machine by asking the kernel: by binding a socket, by routing towards a host, and by
// listing the network interfaces.
#include "launch/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/errors.h"

namespace orthant {
namespace {

constexpr int kFamilies[] = {AF_INET, AF_INET6};  // in order of preference

// The numeric text of an address. Empty if it reaches this machine only through one link, such as fe80::1.
std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&six)) inet_ntop(AF_INET6, &six, text, sizeof text);
  }
  return text;
}

int listen_on_loopback(int family, int port) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1;  // lingering connections of a finished run do not block the port
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(static_cast<uint16_t>(port));
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = four.sin_port;
  six.sin6_addr = in6addr_loopback;
  const bool bound = family == AF_INET ? bind(fd, reinterpret_cast<const sockaddr*>(&four), sizeof four) == 0
                                       : bind(fd, reinterpret_cast<const sockaddr*>(&six), sizeof six) == 0;
  if (bound && listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// Whether this machine has a loopback address of the family.
bool has_loopback(int family) {
  const int fd = listen_on_loopback(family, 0);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

int loopback_family() { return !has_loopback(AF_INET) && has_loopback(AF_INET6) ? AF_INET6 : AF_INET; }

// Returns the address of an interface. Without a name: of the first interface that is up and not the loopback. Empty if
// there is no such interface.
std::string interface_address(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (const int family : kFamilies) {
    for (const ifaddrs* i = list; i != nullptr && found.empty(); i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_UP) == 0) continue;
      const bool wanted = name.empty() ? (i->ifa_flags & IFF_LOOPBACK) == 0 : name == i->ifa_name;
      if (wanted) found = text_of(i->ifa_addr);
    }
  }
  freeifaddrs(list);
  return found;
}

// Returns the local address of this family from which packets to the host would leave, which is the one that the host's
// network sees. Empty if unknown, and if it is the loopback.
std::string address_towards(const std::string& host, int family) {
  addrinfo hints{}, *target = nullptr;
  hints.ai_family = family;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), "9", &hints, &target) != 0) return "";
  std::string found;
  const int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  auto* const address = reinterpret_cast<sockaddr*>(&local);
  if (fd >= 0 && ::connect(fd, target->ai_addr, target->ai_addrlen) == 0 && getsockname(fd, address, &length) == 0)
    found = text_of(address);
  if (fd >= 0) close(fd);
  freeaddrinfo(target);
  // The name of a host often resolves to 127.0.1.1 on the host itself, which is useless to other hosts.
  return is_loopback(found) ? "" : found;
}

}  // namespace

std::string loopback_address() { return loopback_family() == AF_INET ? "127.0.0.1" : "::1"; }

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

int listen_on_loopback(int port) { return listen_on_loopback(loopback_family(), port); }

int port_of_listener(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(&address)->sin_port
                                            : reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
}

std::string local_address(const Launch& launch) {
  if (!launch.interface_name.empty()) {
    const std::string address = interface_address(launch.interface_name);
    if (address.empty()) {
      throw ConfigError(
          fmt::format("GLOO_SOCKET_IFNAME = {}: this machine has no such network interface with an address that other "
                      "machines can reach (ip addr lists them)",
                      launch.interface_name));
    }
    return address;
  }
  if (launch.local_size == launch.world_size) return loopback_address();
  for (const int family : kFamilies) {
    if (std::string address = address_towards(launch.address, family); !address.empty()) return address;
  }
  const std::string address = interface_address("");
  return address.empty() ? loopback_address() : address;
}

std::string host_and_port(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

}  // namespace orthant
