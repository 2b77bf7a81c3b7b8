#include "interference/hog_work.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

std::function<void()> matrix_product() {
  constexpr size_t kSize = 192;  // three matrices that fit the second cache
  struct Matrices {
    std::vector<float> a = std::vector<float>(kSize * kSize, 0.5F), b = a, c = a;
  };
  return [m = Matrices()]() mutable {
    for (size_t i = 0; i < kSize; ++i)
      for (size_t k = 0; k < kSize; ++k)
        for (size_t j = 0; j < kSize; ++j) m.c[i * kSize + j] += m.a[i * kSize + k] * m.b[k * kSize + j];
    m.b.swap(m.c);
    for (float& value : m.b) value = value > 1 ? 0.5F : value;  // stays finite
  };
}

std::function<void()> memory_copy() {
  constexpr size_t kBytes = 64 << 20;  // larger than caches
  return [from = std::vector<char>(kBytes, 1), to = std::vector<char>(kBytes)]() mutable {
    std::memcpy(to.data(), from.data(), kBytes);
    from.swap(to);
  };
}

[[noreturn]] void fail_loopback(const char* what) {
  throw RunError(std::string("hog 'loopback': ") + what + ": " + std::strerror(errno));
}

// TCP through the host's loopback device, from this process to itself.
std::function<void()> loopback_traffic() {
  const int server = ::socket(AF_INET, SOCK_STREAM, 0), sender = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  if (server < 0 || sender < 0 || ::bind(server, raw, length) != 0 || ::listen(server, 1) != 0 ||
      ::getsockname(server, raw, &length) != 0 || ::connect(sender, raw, length) != 0)
    fail_loopback("connecting to itself");
  const int receiver = ::accept(server, nullptr, nullptr);
  if (receiver < 0) fail_loopback("accepting its own connection");
  ::close(server);
  return [sender, receiver, buffer = std::vector<char>(32 << 10)]() mutable {
    const ssize_t sent = ::send(sender, buffer.data(), buffer.size(), 0);
    if (sent <= 0) fail_loopback("sending");
    for (ssize_t left = sent; left > 0;) {
      const ssize_t got = ::recv(receiver, buffer.data(), static_cast<size_t>(left), 0);
      if (got <= 0) fail_loopback("receiving");
      left -= got;
    }
  };
}

}  // namespace

const std::vector<HogKind>& hog_kinds() {
  static const std::vector<HogKind> rows = {
      {"matrix", "products of matrices that fit a cache", matrix_product},
      {"copy", "64 MiB copied to and fro, past all caches", memory_copy},
      {"loopback", "TCP through the host to itself", loopback_traffic}};
  return rows;
}

const HogKind& hog_kind(const std::string& name, const std::string& where) {
  std::vector<std::string> names;
  for (const HogKind& kind : hog_kinds()) {
    if (name == kind.name) return kind;
    names.emplace_back(kind.name);
  }
  throw InputError(where + ": there is no kind of hog '" + name + "'" + suggestion(name, names));
}

}  // namespace pipewright
