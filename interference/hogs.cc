#include "interference/hogs.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

// A child's one line to its parent. The kernel keeps what fits PIPE_BUF (4096) in one piece.
void tell_parent(int descriptor, const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(descriptor, text.data(), text.size());
  ::close(descriptor);
}

std::string error_line(const std::exception& error) {
  const auto short_text = [](const std::string& text) {  // LibTorch's have the stack in further lines
    return text.substr(0, std::min<size_t>(text.find('\n'), 1000));
  };
  const auto* const known = dynamic_cast<const Error*>(&error);
  Json json;
  json["code"] = static_cast<int>(known ? known->code() : ExitCode::kFailed);
  json["what"] = short_text(error.what());
  json["remedy"] = known ? short_text(known->remedy()) : "";
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

[[noreturn]] void throw_error_of(const std::string& line) {
  if (line.empty()) throw RunError("hogs: one of the processes has ended before it ran");
  const Json json = parse_json(line, "what a hog said");
  throw Error(static_cast<ExitCode>(json.at("code").get<int>()), json.at("what").get<std::string>(),
              json.at("remedy").get<std::string>());
}

/// Tells `parent` when it runs, or why it does not.
[[noreturn]] void burn(const HogMaker& make, int parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  bool runs = false;
  try {
    const std::function<void()> round = make();
    tell_parent(parent, kRunning);
    runs = true;
    while (true) round();
  } catch (const std::exception& error) {
    if (runs)
      std::fprintf(stderr, "error: %s\n", error.what());
    else
      tell_parent(parent, error_line(error));
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

// Until each of them runs, or a signal ends the hogs. Throws what the first throws that does not run; the
// others end with this process.
void await_children(int pipe, size_t children, const sigset_t& waiting) {
  pollfd from{pipe, POLLIN, 0};
  for (size_t running = 0; running < children && hogs_ended == 0;) {
    if (::ppoll(&from, 1, nullptr, &waiting) <= 0) continue;  // a signal
    const std::string line = line_from(pipe);
    if (line != kRunning) throw_error_of(line);
    ++running;
  }
}

}  // namespace

void HogOrder::check(const std::string& where) const {
  hog_kind(kind, where);
  if (device.empty()) check_range(where, "core", core, 0, CPU_SETSIZE - 1);
  check_range(where, "processes", processes, 1, kMostProcesses);
}

void run_hogs(const HogOrder& order) { run_hogs(order, hog_kind(order.kind, "hogs").make); }

void run_hogs(const HogOrder& order, const HogMaker& make) {
  order.check("hogs");
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (order.device.empty()) bind_to(order.core);
  // Blocked until they are waited for: they may come before the children are there.
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int one : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&signals, one);
  sigprocmask(SIG_BLOCK, &signals, &before);
  for (const int one : {SIGTERM, SIGINT}) signal(one, [](int) { hogs_ended = 1; });
  signal(SIGCHLD, [](int) {});
  sigset_t waiting = before;
  for (const int one : {SIGTERM, SIGINT, SIGCHLD}) sigdelset(&waiting, one);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw RunError(std::string("hogs: no pipe: ") + std::strerror(errno));
  const auto began = std::chrono::steady_clock::now();
  std::vector<pid_t> children;
  for (int64_t i = 0; i < order.processes; ++i) {
    const pid_t child = ::fork();
    if (child < 0) throw RunError(std::string("hogs: no further process: ") + std::strerror(errno));
    if (child == 0) {
      sigprocmask(SIG_SETMASK, &before, nullptr);
      ::close(ends[0]);
      burn(make, ends[1]);
    }
    children.push_back(child);
  }
  ::close(ends[1]);
  await_children(ends[0], children.size(), waiting);
  ::close(ends[0]);
  if (hogs_ended == 0) std::printf("%s\n", kRunning);
  std::fflush(stdout);
  bool failed = false;
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
  json["kind"] = order.kind;
  if (order.device.empty())
    json["core"] = order.core;
  else
    json["device"] = order.device;
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
