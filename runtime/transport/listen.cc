#include "runtime/transport/listen.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "graph/error.h"

namespace pipewright {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses addresses_of(const char* host, int64_t port, int family, int flags) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host, std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  const auto& in = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  return (ntohl(in.s_addr) >> 24) == 127;
}

std::string host_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

// Nothing, with errno, where this address cannot be had.
std::optional<Listening> try_bind(const addrinfo& address) {
  const int descriptor = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::nullopt;
  const int on = 1;
  const int off = 0;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.ai_family == AF_INET6) setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  auto* const name = reinterpret_cast<sockaddr*>(&bound);
  if (bind(descriptor, address.ai_addr, address.ai_addrlen) != 0 ||
      getsockname(descriptor, name, &size) != 0) {
    const int error = errno;
    close(descriptor);
    errno = error;
    return std::nullopt;
  }
  const auto port = address.ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(name)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(name)->sin_port;
  return Listening{descriptor, ntohs(port), host_of(name, size)};
}

[[noreturn]] void fail(const std::string& host, int64_t port) {
  throw RunError("port " + std::to_string(port) + " of " + host + ": " + std::strerror(errno));
}

}  // namespace

Listening bind_socket(const std::string& host, int64_t port) {
  const std::string number = host == "localhost" ? "127.0.0.1" : host;
  if (const Addresses own = addresses_of(number.c_str(), port, AF_UNSPEC, AI_NUMERICHOST);
      own && is_loopback(own->ai_addr)) {
    if (const auto bound = try_bind(*own)) return *bound;
    fail(host, port);
  }
  const Addresses found = addresses_of(host.c_str(), port, AF_UNSPEC, 0);
  for (const addrinfo* address = found.get(); address; address = address->ai_next) {
    if (is_loopback(address->ai_addr)) continue;
    if (const auto bound = try_bind(*address)) return *bound;
    if (errno == EADDRINUSE || errno == EACCES) fail(host, port);
  }
  for (const int family : {AF_INET6, AF_INET}) {
    const Addresses all = addresses_of(nullptr, port, family, AI_PASSIVE);
    if (!all) continue;
    if (auto bound = try_bind(*all)) {
      bound->host = "127.0.0.1";
      return *bound;
    }
    if (errno == EADDRINUSE || errno == EACCES) break;
  }
  fail("this host", port);
}

}  // namespace pipewright
