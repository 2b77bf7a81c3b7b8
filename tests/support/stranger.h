// Servers that are no store of ours, on a free port of 127.0.0.1.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace pipewright::testing {

enum class Manners {
  kSilent,       ///< accepts and says nothing
  kCloses,       ///< closes each connection at once
  kGarbage,      ///< says a byte that no store would say every 50 ms
  kEcho,         ///< sends back what it gets
  kAnswersOnce,  ///< gives a store's sign of life, then nothing
  kDrops         ///< what comes to the port is lost
};

class Stranger {
 public:
  explicit Stranger(Manners manners) : manners_(manners) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    ::bind(listener_, name, size);
    ::listen(listener_, manners == Manners::kDrops ? 0 : 64);
    ::getsockname(listener_, name, &size);
    port_ = ntohs(address.sin_port);
    if (manners == Manners::kDrops) {
      // A full queue that nobody takes from: the kernel drops what else comes.
      for (int i = 0; i < 3; ++i) {
        held_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        ::connect(held_.back(), name, size);
      }
    } else {
      thread_ = std::thread([this] { serve(); });
    }
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    for (const int socket : held_) ::close(socket);
    ::close(listener_);
  }
  int64_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  void serve() {
    while (!stop_) {
      std::vector<pollfd> waiting = {{listener_, POLLIN, 0}};
      for (const int socket : held_) waiting.push_back({socket, POLLIN, 0});
      const bool any = ::poll(waiting.data(), waiting.size(), 50) > 0;
      for (const int socket : held_) {
        if (manners_ == Manners::kGarbage) ::send(socket, "x", 1, MSG_NOSIGNAL);
      }
      if (!any) continue;
      for (size_t i = 1; i < waiting.size(); ++i) {
        if (waiting[i].revents != 0) answer(i - 1);
      }
      if (waiting[0].revents == 0) continue;
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (manners_ == Manners::kCloses) {
        ::close(socket);
      } else {
        held_.push_back(socket);
        answered_.push_back(false);
      }
    }
  }
  void answer(size_t i) {
    char bytes[256];
    const ssize_t size = ::recv(held_[i], bytes, sizeof bytes, MSG_DONTWAIT);
    if (size <= 0) return;
    if (manners_ == Manners::kEcho) ::send(held_[i], bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
    if (manners_ == Manners::kAnswersOnce && !answered_[i] && size >= 5 && bytes[size - 5] == kPing) {
      ::send(held_[i], bytes + size - 4, 4, MSG_NOSIGNAL);
      answered_[i] = true;
    }
  }

  static constexpr char kPing = 13;  // of c10d's protocol: a number of four bytes follows, which comes back

  const Manners manners_;
  int listener_ = -1;
  int64_t port_ = 0;
  std::vector<int> held_;
  std::vector<bool> answered_;  // by connection
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace pipewright::testing
