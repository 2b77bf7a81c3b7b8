// What counts as a second signal, in processes of their own.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <functional>

#include "runtime/control/signals.h"

using namespace pipewright;

namespace {

// Exit code of a child that runs `body`; `meanwhile` gets its process once it is ready.
int exit_code_of(
    const std::function<void(const std::function<void()>& ready)>& body,
    const std::function<void(pid_t)>& meanwhile = [](pid_t) {}) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    body([&] {
      if (::write(ends[1], "x", 1) != 1) std::_Exit(99);
    });
    std::_Exit(0);
  }
  char byte = 0;
  ::close(ends[1]);
  if (::read(ends[0], &byte, 1) == 1) meanwhile(child);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Longer than copies of one signal may be apart.
void let_time_pass() {
  for (timespec left{1, 100'000'000}; ::nanosleep(&left, &left) != 0;) {
  }
}

}  // namespace

TEST_CASE("signals: copies of the first are none, a second one ends the process at once with its code") {
  const int second = GENERATE(SIGINT, SIGTERM);
  CHECK(exit_code_of([](const auto&) {
          install_signal_handlers();
          for (int copy = 0; copy < 5; ++copy) std::raise(SIGTERM);
          if (received_signal != SIGTERM) std::_Exit(1);
        }) == 0);
  CHECK(exit_code_of([&](const auto&) {
          install_signal_handlers();
          std::raise(SIGINT);
          let_time_pass();
          std::raise(second);
        }) == 128 + second);
}

TEST_CASE("signals: what the launcher passes on late is no second one, what comes from others is") {
  const auto wait_for_parent = [](const auto& ready) {
    ::setenv(kLauncherVariable, std::to_string(::getppid()).c_str(), 1);
    install_signal_handlers();
    std::raise(SIGTERM);
    let_time_pass();
    // Held back until it is waited for: it may come before.
    sigset_t only, before;
    ::sigemptyset(&only);
    ::sigaddset(&only, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &only, &before);
    ready();
    ::sigsuspend(&before);  // ends with the signal
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
  };
  const auto pass_on = [](pid_t child) { ::kill(child, SIGTERM); };
  CHECK(exit_code_of(
            [&](const auto& ready) {
              wait_for_parent(ready);
              if (received_signal != SIGTERM) std::_Exit(1);
            },
            pass_on) == 0);
  CHECK(exit_code_of(
            [&](const auto& ready) {
              wait_for_parent(ready);
              std::raise(SIGTERM);
            },
            pass_on) == 143);
}
