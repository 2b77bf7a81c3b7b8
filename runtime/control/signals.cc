#include "runtime/control/signals.h"

#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "graph/file_watch.h"

namespace pipewright {
namespace {

constexpr int64_t kCopiesNanoseconds = 1'000'000'000;

// A rank's launcher; 0: it has none.
pid_t launcher = 0;
std::atomic<int64_t> first_signal_nanoseconds = 0;

int64_t now_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

void on_signal(int number, siginfo_t* info, void*) {
  const int64_t now = now_nanoseconds();
  int64_t first = 0;
  if (first_signal_nanoseconds.compare_exchange_strong(first, now)) {
    received_signal = number;
    return;
  }
  if (now - first < kCopiesNanoseconds) return;
  // It passes a signal on once. What comes of a launcher that is our parent no more is the kernel's word that
  // it has died.
  if (launcher != 0 && info->si_pid == launcher && getppid() == launcher) return;
  std::_Exit(128 + number);
}

void on_hangup(int, siginfo_t* info, void* context) { on_signal(SIGTERM, info, context); }

const char* early_name = "";

void on_early_signal(int number) {
  const char* const words[] = {
      early_name, ": error: ", number == SIGINT ? "interrupted (SIGINT)" : "terminated (SIGTERM)",
      ": nothing had been trained\n"};
  for (const char* text : words) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
  }
  ::_exit(128 + number);
}

}  // namespace

std::atomic<int> received_signal = 0;

void say_when_ended_early(const char* name) noexcept {
  early_name = name;
  struct sigaction action = {};
  action.sa_handler = on_early_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void install_signal_handlers() {
  const char* pid = std::getenv(kLauncherVariable);
  launcher = pid ? static_cast<pid_t>(std::atoll(pid)) : 0;
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
}

void terminate_at_hangup() {
  struct sigaction action = {};
  sigaction(SIGHUP, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_sigaction = on_hangup;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGHUP, &action, nullptr);
}

void await_files_for(double timeout_seconds) {
  constexpr auto kBehindWatchdog = std::chrono::seconds(2);
  FilePatience patience{std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout_seconds)) +
                        kBehindWatchdog};
  patience.exit_code_of_signal = [] {
    const int signal = received_signal;
    return signal == 0 ? 0 : static_cast<int>(exit_code_of_signal(signal));
  };
  set_file_patience(patience);
}

ExitCode exit_code_of_signal(int signal) {
  return signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated;
}

bool is_interruption(ExitCode code) {
  return code == ExitCode::kInterrupted || code == ExitCode::kTerminated;
}

std::string words_of_signal(int signal) {
  return signal == SIGINT ? "interrupted (SIGINT)" : "terminated (SIGTERM)";
}

}  // namespace pipewright
