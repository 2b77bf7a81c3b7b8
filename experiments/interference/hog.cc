// Interference: takes a core, as another job on the host would, until it is ended.
//
//   interference_hog KIND CORE PROCESSES
//
// Started by a script whose end ends it too. At SIGTERM it prints {"kind", "core", "processes", "seconds",
// "cpu_seconds"}: how long it ran, and how much of a core its processes had together.
#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

constexpr int64_t kMostProcesses = 16;

/// What a process does over and over.
struct Kind {
  const char* name;
  std::function<void()> (*make)();
};

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

[[noreturn]] void fail(const char* what) {
  throw RunError(std::string("interference_hog: ") + what + ": " + std::strerror(errno));
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
    fail("loopback");
  const int receiver = ::accept(server, nullptr, nullptr);
  if (receiver < 0) fail("loopback");
  ::close(server);
  return [sender, receiver, buffer = std::vector<char>(32 << 10)]() mutable {
    const ssize_t sent = ::send(sender, buffer.data(), buffer.size(), 0);
    if (sent <= 0) fail("send");
    for (ssize_t left = sent; left > 0;) {
      const ssize_t got = ::recv(receiver, buffer.data(), static_cast<size_t>(left), 0);
      if (got <= 0) fail("receive");
      left -= got;
    }
  };
}

constexpr std::array kKinds = {Kind{"matrix", matrix_product}, Kind{"copy", memory_copy},
                               Kind{"loopback", loopback_traffic}};

const Kind& kind_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) {
    if (name == kind.name) return kind;
    names.emplace_back(kind.name);
  }
  throw InputError("interference_hog: there is no kind '" + name + "'" + suggestion(name, names));
}

int64_t number_of(const char* text, const char* what, int64_t least, int64_t most) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least || value > most)
    throw InputError(std::string("interference_hog: ") + what + " '" + text + "': expected " +
                     std::to_string(least) + ".." + std::to_string(most));
  return value;
}

volatile sig_atomic_t ended = 0;

void burn(const Kind& kind) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, SIG_DFL);
  for (const std::function<void()> round = kind.make();;) round();
}

int hog(int count, char** words) {
  if (count != 4)
    throw InputError("interference_hog: expected KIND CORE PROCESSES",
                     "interference_hog matrix 1 2: two processes on core 1. Kinds: matrix, copy, loopback.");
  const Kind& kind = kind_named(words[1]);
  const int64_t core = number_of(words[2], "core", 0, CPU_SETSIZE - 1);
  const int64_t processes = number_of(words[3], "processes", 1, kMostProcesses);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("core");
  // Blocked until it is waited for: it may come before the children are there.
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, &before);
  signal(SIGTERM, [](int) { ended = 1; });
  signal(SIGCHLD, [](int) {});
  const auto began = std::chrono::steady_clock::now();
  std::vector<pid_t> children;
  for (int64_t i = 0; i < processes; ++i) {
    const pid_t child = ::fork();
    if (child < 0) fail("fork");
    if (child == 0) {
      sigprocmask(SIG_SETMASK, &before, nullptr);
      burn(kind);
    }
    children.push_back(child);
  }
  int failed = 0;
  while (ended == 0 && failed == 0) {
    sigsuspend(&before);
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) > 0) failed = 1;  // a child ends by itself only with an error
  }
  for (const pid_t child : children) ::kill(child, SIGKILL);
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  if (failed != 0) throw RunError("interference_hog: one of its processes has ended");
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  Json json;
  json["kind"] = kind.name;
  json["core"] = core;
  json["processes"] = processes;
  json["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  json["cpu_seconds"] = seconds(used.ru_utime) + seconds(used.ru_stime);
  std::printf("%s\n", json.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace pipewright

int main(int count, char** words) {
  try {
    return pipewright::hog(count, words);
  } catch (const pipewright::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (!error.remedy().empty()) std::fprintf(stderr, "  %s\n", error.remedy().c_str());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
