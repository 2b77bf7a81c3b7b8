#include "runtime/transport/ask_store.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>
#include <utility>

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// Where a name means several addresses, one that drops what it is sent leaves time for the others.
constexpr auto kOneConnection = 2s;
constexpr auto kOneAnswer = 10s;

std::string numeric(const addrinfo& address) {
  char host[NI_MAXHOST] = {};
  getnameinfo(address.ai_addr, address.ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

class Socket {
 public:
  explicit Socket(int family)
      : descriptor_(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

  bool wait_for(short events, Clock::time_point deadline) const {
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (left <= 0ms) return false;
      pollfd waiting{descriptor_, events, 0};
      if (::poll(&waiting, 1, static_cast<int>(left.count())) == 1) return true;
    }
  }

 private:
  const int descriptor_;
};

// 0, or why there is no connection.
int connect(const Socket& socket, const addrinfo& address, Clock::time_point deadline) {
  if (socket.descriptor() < 0) return errno;
  if (::connect(socket.descriptor(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!socket.wait_for(POLLOUT, std::min(deadline, Clock::now() + kOneConnection))) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::string append_bytes(std::string text, const void* value, size_t size) {
  return text.append(static_cast<const char*>(value), size);
}

// What was read, as one can print it.
std::string shown(const std::string& bytes) {
  std::string text;
  for (const char c : bytes.substr(0, bytes.find_first_of("\r\n"))) text += c >= ' ' && c <= '~' ? c : '?';
  return text;
}

// The sign of life that c10d's own client asks for: the server sends a number back.
std::pair<StoreAnswer::Who, std::string> ask(const Socket& socket, Clock::time_point deadline) {
  using c10d::detail::QueryType;
  constexpr auto kAnother = StoreAnswer::Who::kAnother;
  const auto byte_of = [](QueryType type) { return std::string(1, static_cast<char>(type)); };
  const uint32_t number = 0x70697065u ^ static_cast<uint32_t>(::getpid());
  const std::string expected = append_bytes("", &number, sizeof number);
  const std::string question =
      append_bytes(byte_of(QueryType::VALIDATE), &c10d::detail::validationMagicNumber,
                   sizeof c10d::detail::validationMagicNumber) +
      byte_of(QueryType::PING) + expected;
  if (::send(socket.descriptor(), question.data(), question.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(question.size()))
    return {kAnother, "it closes the connection"};
  std::string got;
  while (got.size() < expected.size()) {
    if (!socket.wait_for(POLLIN, deadline)) return {kAnother, "it accepts connections and says nothing"};
    char buffer[64];
    const ssize_t size = ::recv(socket.descriptor(), buffer, sizeof buffer, 0);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size <= 0) return {kAnother, "it closes the connection"};
    got.append(buffer, static_cast<size_t>(size));
    if (got != expected.substr(0, got.size())) return {kAnother, "it answers '" + shown(got) + "'"};
  }
  return {StoreAnswer::Who::kStore, ""};
}

}  // namespace

StoreAnswer ask_store(const std::string& host, int64_t port, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found))
    return {StoreAnswer::Who::kNobody, "",
            "the name '" + host + "' is not known here: " + gai_strerror(code)};
  const Addresses addresses(found, freeaddrinfo);
  StoreAnswer answer;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const Socket socket(address->ai_family);
    const int error = connect(socket, *address, deadline);
    if (error != 0) {
      if (answer.who == StoreAnswer::Who::kNobody) answer.words = std::strerror(error);
      continue;
    }
    const auto [who, words] = ask(socket, std::min(deadline, Clock::now() + kOneAnswer));
    answer = {who, who == StoreAnswer::Who::kStore ? numeric(*address) : "", words};
    if (who == StoreAnswer::Who::kStore) break;
  }
  return answer;
}

}  // namespace pipewright
