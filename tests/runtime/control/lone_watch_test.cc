// A process without peers that stands still ends by itself, and one that works or was stopped does not.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "graph/json.h"
#include "runtime/control/lone_watch.h"
#include "runtime/control/signals.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using namespace std::chrono_literals;

/// The exit status of a child that runs `work` under a watch of `timeout`.
template <typename Work>
int status_of(std::chrono::milliseconds timeout, const std::filesystem::path& words, const Work& work,
              int signal = 0, bool stop = false) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    received_signal = 0;
    install_signal_handlers();
    Progress progress;
    {
      const LoneWatch watch(progress, timeout, [&](const std::string& why) { write_file(words, why); });
      progress.begin({"forward of minibatch 3", {}});
      write_file(words.string() + ".begun", "");
      work();
    }
    _exit(0);
  }
  while (!std::filesystem::exists(words.string() + ".begun")) std::this_thread::sleep_for(5ms);
  if (signal != 0) kill(child, signal);
  if (stop) {
    kill(child, SIGSTOP);
    std::this_thread::sleep_for(3 * timeout);
    kill(child, SIGCONT);
  }
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

void stand() {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  char byte;
  while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
  }
}

TEST_CASE("a process that stands in an operation ends within the time-out and says in which") {
  const testing::TemporaryFolder folder;
  CHECK(status_of(700ms, folder / "words", stand) == 1);
  CHECK_THAT(read_file(folder / "words"), Catch::Contains("does not get on: forward of minibatch 3 since"));
}

TEST_CASE("a signal ends a process that stands, with the signal's code") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const testing::TemporaryFolder folder;
    CHECK(status_of(20s, folder / "words", stand, signal) == 128 + signal);
    CHECK_THAT(read_file(folder / "words"), Catch::Contains("while it stood in forward of minibatch 3"));
  }
}

TEST_CASE("a process that works, or that was stopped meanwhile, is left alone") {
  const testing::TemporaryFolder folder;
  const auto work = [] {
    const auto end = std::chrono::steady_clock::now() + 3s;
    volatile double sum = 0;
    while (std::chrono::steady_clock::now() < end) sum = sum + 1;
  };
  CHECK(status_of(2500ms, folder / "a", work) == 0);
  CHECK(status_of(2500ms, folder / "b", work, SIGTERM) == 0);  // the main thread sees to the signal itself
  CHECK(status_of(
            2s, folder / "c", [] { std::this_thread::sleep_for(300ms); }, 0, true) == 0);
  CHECK_FALSE(std::filesystem::exists(folder / "a"));
}

}  // namespace
}  // namespace pipewright
