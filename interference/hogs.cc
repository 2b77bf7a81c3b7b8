#include "interference/hogs.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "graph/error.h"
#include "graph/json.h"
#include "interference/core_features.h"
#include "interference/hog_work.h"

extern char** environ;

namespace pipewright {
namespace {

constexpr const char* kRunning = "running";

volatile sig_atomic_t hogs_ended = 0;

[[noreturn]] void burn(const HogKind& kind) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  try {
    for (const std::function<void()> round = kind.make();;) round();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    std::_Exit(1);
  }
}

void bind_to(int64_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  if (sched_setaffinity(0, sizeof set, &set) == 0) return;
  std::vector<std::string> cores;
  for (const int64_t usable : cores_of_process()) cores.push_back(std::to_string(usable));
  throw InputError("hogs: this process may not run on core " + std::to_string(core) + "; it may on " +
                   join(cores, ", "));
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// A line from the pipe; what is there if the other end closes it.
std::string line_from(int descriptor) {
  std::string line;
  char letter = 0;
  while (true) {
    const ssize_t got = ::read(descriptor, &letter, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || letter == '\n') return line;
    line += letter;
  }
}

}  // namespace

void HogOrder::check(const std::string& where) const {
  hog_kind(kind, where);
  check_range(where, "core", core, 0, CPU_SETSIZE - 1);
  check_range(where, "processes", processes, 1, kMostProcesses);
}

void run_hogs(const HogOrder& order) {
  order.check("hogs");
  const HogKind& kind = hog_kind(order.kind, "hogs");
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  bind_to(order.core);
  // Blocked until they are waited for: they may come before the children are there.
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int one : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&signals, one);
  sigprocmask(SIG_BLOCK, &signals, &before);
  for (const int one : {SIGTERM, SIGINT}) signal(one, [](int) { hogs_ended = 1; });
  signal(SIGCHLD, [](int) {});
  const auto began = std::chrono::steady_clock::now();
  std::vector<pid_t> children;
  for (int64_t i = 0; i < order.processes; ++i) {
    const pid_t child = ::fork();
    if (child < 0) throw RunError(std::string("hogs: no further process: ") + std::strerror(errno));
    if (child == 0) {
      sigprocmask(SIG_SETMASK, &before, nullptr);
      burn(kind);
    }
    children.push_back(child);
  }
  std::printf("%s\n", kRunning);
  std::fflush(stdout);
  bool failed = false;
  sigset_t waiting = before;
  for (const int one : {SIGTERM, SIGINT, SIGCHLD}) sigdelset(&waiting, one);
  while (hogs_ended == 0 && !failed) {
    sigsuspend(&waiting);
    int status = 0;
    failed = ::waitpid(-1, &status, WNOHANG) > 0;  // a child ends by itself only with an error
  }
  for (const pid_t child : children) ::kill(child, SIGKILL);
  while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
  if (failed && hogs_ended == 0) throw RunError("hogs: one of the processes has ended by itself");
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  Json json;
  json["kind"] = kind.name;
  json["core"] = order.core;
  json["processes"] = order.processes;
  json["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  json["cpu_seconds"] = seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
  std::printf("%s\n", json.dump().c_str());
}

Hogs::Hogs(std::vector<std::string> command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw RunError(std::string("hogs: no pipe: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  const int failed = posix_spawn(&process_, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  output_ = ends[0];
  if (failed != 0) {
    ::close(output_);
    throw RunError("hogs: cannot start '" + command[0] + "': " + std::strerror(failed));
  }
  if (line_from(output_) == kRunning) return;
  ::waitpid(process_, nullptr, 0);
  ::close(output_);
  throw RunError("hogs: '" + join(command, " ") + "' ended before its processes ran",
                 "Likely cause: what it said on standard error, above.");
}

double Hogs::end() {
  ::kill(process_, SIGTERM);
  const std::string said = line_from(output_);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
  ::close(output_);
  process_ = -1;
  if (said.empty()) throw RunError("hogs: they have ended by themselves");
  return parse_json(said, "what the hogs said").at("cpu_seconds").get<double>();
}

Hogs::~Hogs() {
  if (process_ < 0) return;
  ::kill(process_, SIGTERM);
  ::waitpid(process_, nullptr, 0);
  ::close(output_);
}

}  // namespace pipewright
