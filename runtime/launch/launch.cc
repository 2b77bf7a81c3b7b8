#include "runtime/launch/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/control/control.h"
#include "runtime/control/heartbeat.h"
#include "runtime/launch/hosts.h"
#include "runtime/launch/rank_output.h"
#include "runtime/transport/open_files.h"
#include "runtime/transport/signed_store.h"
#include "runtime/transport/store.h"

extern char** environ;

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// After a signal the ranks end the minibatches that are under way and write a checkpoint.
constexpr std::chrono::seconds kCheckpointPatience = 120s;

// "I/N": this is rank I of the N ranks on its host, which may take a core each.
constexpr const char* kPinVariable = "PIPEWRIGHT_PIN";
constexpr const char* kCoresVariable = "PIPEWRIGHT_CORES";
constexpr const char* kSecretVariable = "PIPEWRIGHT_JOB_SECRET";

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
  }
  return cores;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// Under which the ranks reach this host.
std::string address_for_ranks(const LaunchSettings& settings) {
  if (settings.hosts.empty()) return "127.0.0.1";
  return settings.master_address.empty() ? host_name() : settings.master_address;
}

// One of the user's own is kept: several launchers may share it.
std::string job_secret() {
  const char* given = std::getenv(kSecretVariable);
  return given && *given ? given : new_secret();
}

// One rank's process (or the remote shell that runs it) and the pipe that carries its output.
struct Child {
  int64_t rank = 0;
  std::string host;  // "" = this one
  pid_t pid = -1;
  int output = -1;  // reading end; -1 when the rank has closed it
  std::ofstream log;
  bool running = false;
  int status = 0;  // as waitpid gives it
};

class Launcher {
 public:
  Launcher(const Job& job, const LaunchSettings& settings)
      : job_(job),
        settings_(settings),
        folder_(job.run.output),
        secret_(job_secret()),
        store_(serve_for(job.world_size(), secret_, address_for_ranks(settings))) {
    if (settings.hosts.empty()) {
      places_.assign(static_cast<size_t>(job.world_size()), HostPlace{"", 0, job.world_size()});
      for (size_t rank = 0; rank < places_.size(); ++rank)
        places_[rank].local_rank = static_cast<int64_t>(rank);
    } else {
      places_ = place_ranks_on_hosts(settings.hosts, job.world_size());
    }
  }

  void run() {
    if (settings_.command == "train") {
      lock_.emplace(folder_);
      prepare_run_folder(folder_, job_.resume, job_.overwrite);
    } else {
      make_run_folder(folder_);
    }
    signal(SIGCHLD, SIG_DFL);  // inherited as ignored it would make waitpid lose the ranks' ends
    install_signal_handlers();
    try {
      for (int64_t rank = 0; rank < job_.world_size(); ++rank) start(rank);
      supervise();
    } catch (...) {
      end_all(SIGKILL);
      throw;
    }
    report();
  }

 private:
  static Store serve_for(int64_t ranks, const std::string& secret, const std::string& address) {
    // A pipe, a log, connections to the store.
    demand_open_files(32 + 6 * ranks, "starting " + std::to_string(ranks) + " ranks");
    return Store::serve(0, "pipewright/0", secret, address);
  }
  void start(int64_t rank);
  std::vector<std::string> variables_of(int64_t rank) const;
  void supervise();
  void read_output(Child& child);
  bool more_output(const Child& child) const;
  void reap();
  void note_end(Child& child);
  void tell_interruption();
  void end_all(int signal);
  int ended_by_signal() const;
  void report();
  bool any_running() const {
    for (const Child& child : children_) {
      if (child.running) return true;
    }
    return false;
  }

  const Job& job_;
  const LaunchSettings& settings_;
  const std::filesystem::path folder_;
  const std::string secret_;
  Store store_;
  std::optional<RunFolderLock> lock_;
  std::vector<HostPlace> places_;  // by rank
  std::vector<Child> children_;
  std::optional<Failure> failure_;  // the first
  WithoutErrors shown_;             // of rank 0
  std::optional<Clock::time_point> end_by_;
};

// NAME=VALUE: what a rank's environment has beside ours.
std::vector<std::string> Launcher::variables_of(int64_t rank) const {
  const HostPlace& place = places_[static_cast<size_t>(rank)];
  std::vector<std::string> variables;
  const auto set = [&](const std::string& name, const std::string& value) {
    variables.push_back(name + "=" + value);
  };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(place.local_rank));
  set("WORLD_SIZE", std::to_string(job_.world_size()));
  set("MASTER_ADDR", address_for_ranks(settings_));
  set("MASTER_PORT", std::to_string(store_.port()));
  set("PIPEWRIGHT_STORE_IS_SERVED", "1");
  if (place.host.empty()) {
    set(kLauncherVariable, std::to_string(getpid()));
  } else {
    set("PIPEWRIGHT_HOST", place.host);
  }
  // Idle OpenMP threads that spin would steal the cores of other ranks.
  if (!std::getenv("OMP_NUM_THREADS")) set("OMP_NUM_THREADS", std::to_string(job_.run.threads));
  if (isatty(STDERR_FILENO)) set("PIPEWRIGHT_PROGRESS_TERMINAL", "1");
  if (settings_.pin && job_.run.threads == 1) {
    set(kPinVariable, std::to_string(place.local_rank) + "/" + std::to_string(place.local_ranks));
  }
  return variables;
}

void Launcher::start(int64_t rank) {
  Child child;
  child.rank = rank;
  child.host = places_[static_cast<size_t>(rank)].host;
  const auto log = folder_ / ("rank-" + std::to_string(rank) + ".log");
  child.log.open(log, std::ios::trunc);
  if (!child.log) throw RunError(log.string() + ": cannot be written: " + std::strerror(errno));

  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw RunError(std::string("pipe: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  int secret_ends[2] = {-1, -1};  // what a remote shell reads
  if (child.host.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  } else {
    if (pipe2(secret_ends, O_CLOEXEC) != 0) throw RunError(std::string("pipe: ") + std::strerror(errno));
    posix_spawn_file_actions_adddup2(&actions, secret_ends[0], STDIN_FILENO);
  }
  if (rank != 0) {
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  } else if (!settings_.results) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  // A group of its own: a Ctrl-C at the terminal reaches the launcher, which passes it on once.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);

  const auto variables = variables_of(rank);
  std::vector<std::string> arguments = {"pipewright-runtime", settings_.command};
  arguments.insert(arguments.end(), settings_.arguments.begin(), settings_.arguments.end());
  std::vector<std::string> environment;
  for (char** variable = environ; *variable; ++variable) environment.push_back(*variable);
  const auto unset = [&](const std::string& name) {
    std::erase_if(environment, [&](const std::string& entry) { return entry.rfind(name + "=", 0) == 0; });
  };
  for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "PIPEWRIGHT_PROGRESS_TERMINAL", kPinVariable})
    unset(name);
  std::string program = "/proc/self/exe";
  if (child.host.empty()) {
    unset(kSecretVariable);
    environment.push_back(kSecretVariable + ("=" + secret_));
    for (const std::string& variable : variables) {
      unset(variable.substr(0, variable.find('=')));
      environment.push_back(variable);
    }
  } else {
    std::vector<std::string> line = {"exec", "env"};
    line.insert(line.end(), variables.begin(), variables.end());
    arguments[0] = std::filesystem::read_symlink(program).string();
    line.insert(line.end(), arguments.begin(), arguments.end());
    // Command lines are for everybody on both hosts to see: the secret goes over standard input.
    const std::string inner = "cd " + shell_line({std::filesystem::current_path().string()}) +
                              " && read -r " + kSecretVariable + " && export " + kSecretVariable + " && " +
                              shell_line(line) + " </dev/null";
    const std::string command = "exec sh -c " + shell_line({inner});  // whatever the user's shell there is
    std::istringstream words(settings_.remote_shell);
    arguments.assign(std::istream_iterator<std::string>(words), {});
    PW_CHECK(!arguments.empty(), "no remote shell");
    program = arguments[0];
    arguments.insert(arguments.end(), {child.host, command});
  }

  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> list;
    for (std::string& text : strings) list.push_back(text.data());
    list.push_back(nullptr);
    return list;
  };
  const int failed = posix_spawnp(&child.pid, program.c_str(), &actions, &attributes,
                                  pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(pipe_ends[1]);
  child.output = pipe_ends[0];
  if (secret_ends[1] >= 0) {
    const std::string line = secret_ + "\n";  // less than a pipe holds
    const ssize_t written = write(secret_ends[1], line.data(), line.size());
    static_cast<void>(written);  // a shell that has gone says so by its exit code
    for (const int end : secret_ends) close(end);
  }
  if (failed) {
    close(child.output);
    throw RunError("rank " + std::to_string(rank) + " cannot be started: " + program + ": " +
                   std::strerror(failed));
  }
  child.running = true;
  children_.push_back(std::move(child));
}

void Launcher::supervise() {
  bool passed_on = false;
  const auto any_output = [this] {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.output >= 0; });
  };
  std::optional<Clock::time_point> output_by;
  while (any_running() || any_output()) {
    std::vector<pollfd> waiting;
    for (const Child& child : children_) waiting.push_back({child.output, POLLIN, 0});
    poll(waiting.data(), waiting.size(), 50);
    for (size_t i = 0; i < children_.size(); ++i) {
      if (waiting[i].revents != 0) read_output(children_[i]);
    }
    reap();
    if (received_signal != 0 && !passed_on) {
      passed_on = true;
      end_all(received_signal);
      if (!settings_.hosts.empty()) tell_interruption();
      if (!end_by_) end_by_ = Clock::now() + (job_.run.checkpoint.on_signal ? kCheckpointPatience : 10s);
    }
    if (end_by_ && Clock::now() > *end_by_) {
      end_all(SIGKILL);
      end_by_ = Clock::now() + 10s;
    }
    // A grandchild that holds a pipe open must not keep the launcher.
    if (!any_running()) {
      if (!output_by) output_by = Clock::now() + 1s;
      if (Clock::now() > *output_by) break;
    }
  }
}

void Launcher::read_output(Child& child) {
  std::array<char, 65536> buffer;
  const ssize_t got = read(child.output, buffer.data(), buffer.size());
  if (got < 0 && errno == EINTR) return;
  if (got <= 0) {
    close(child.output);
    child.output = -1;
    return;
  }
  child.log.write(buffer.data(), got);
  child.log.flush();
  if (child.rank == 0) {
    std::cerr << shown_.take({buffer.data(), static_cast<size_t>(got)}) << std::flush;
  }
}

// Something to read now, or the end.
bool Launcher::more_output(const Child& child) const {
  pollfd waiting{child.output, POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

void Launcher::reap() {
  for (Child& child : children_) {
    if (!child.running) continue;
    if (waitpid(child.pid, &child.status, WNOHANG) == 0) continue;
    child.running = false;
    note_end(child);
  }
}

// A rank that ends in any other way than by finishing ends the job. One that could still speak has told the
// others itself; a killed one has not.
void Launcher::note_end(Child& child) {
  const bool exited = WIFEXITED(child.status);
  if (exited && WEXITSTATUS(child.status) == 0) return;
  if (!end_by_) {
    end_by_ =
        Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * job_.run.timeout_seconds)) + 5s;
  }
  if (failure_) return;
  failure_ = announced_failure(store_);
  if (failure_) return;
  const std::string rank =
      "rank " + std::to_string(child.rank) + (child.host.empty() ? "" : " on " + child.host);
  // What it was last heard of doing, and who waits for it now.
  std::string words;
  const auto reports = read_reports(store_, job_.world_size());
  const std::string last = doing(reports[static_cast<size_t>(child.rank)]);
  if (!last.empty()) words += "; last heard of in " + last;
  const std::string waiting = who_waits_for(reports, child.rank);
  if (!waiting.empty()) words += "; " + waiting;
  Failure failure{child.rank, ExitCode::kPeerLost, ""};
  if (exited) {
    // A remote shell that cannot reach its host ends with a code of its own.
    failure.code =
        child.host.empty() ? static_cast<ExitCode>(WEXITSTATUS(child.status)) : ExitCode::kPeerLost;
    const auto log = folder_ / ("rank-" + std::to_string(child.rank) + ".log");
    while (child.output >= 0 && more_output(child)) read_output(child);
    const auto said = last_error(log, failure.code);
    failure.message = said ? rank + ": " + said->what()
                           : rank + " ended with exit code " + std::to_string(WEXITSTATUS(child.status)) +
                                 "; see " + log.string();
    if (said) failure.remedy = said->remedy();
  } else {
    failure.message = rank + " was killed by signal " + std::to_string(WTERMSIG(child.status)) + " (" +
                      strsignal(WTERMSIG(child.status)) + ")" + words;
  }
  failure_ = failure;
  announce_failure(store_, failure);
}

// A remote shell passes no signals on: its rank hears of them over the store.
void Launcher::tell_interruption() {
  announce_failure(store_, {0, exit_code_of_signal(received_signal), words_of_signal(received_signal)});
}

void Launcher::end_all(int signal) {
  for (Child& child : children_) {
    if (!child.running) continue;
    if (signal != SIGKILL && !child.host.empty()) continue;
    kill(child.pid, signal);
    if (signal == SIGKILL) {
      kill(child.pid, SIGCONT);
      waitpid(child.pid, &child.status, 0);
      child.running = false;
    }
  }
}

// The signal that ended the job, whichever of its processes got it; 0: none did.
int Launcher::ended_by_signal() const {
  const bool all_done = std::all_of(children_.begin(), children_.end(), [](const Child& child) {
    return WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0;
  });
  if (all_done) return 0;
  if (received_signal != 0) return received_signal;
  for (const int signal : {SIGINT, SIGTERM}) {
    if (failure_ && failure_->code == exit_code_of_signal(signal)) return signal;
  }
  return 0;
}

void Launcher::report() {
  if (const int signal = ended_by_signal()) {
    std::cerr << shown_.held() << std::flush;  // what rank 0 has left
    throw Error(exit_code_of_signal(signal), words_of_signal(signal) + "; all ranks have ended",
                "what was trained until then is in " + (folder_ / "metrics.jsonl").string() +
                    (list_checkpoints(folder_).empty() ? "" : "; go on with --resume latest"));
  }
  if (failure_) {
    throw Error(failure_->code, failure_->message,
                failure_->remedy + (failure_->remedy.empty() ? "E" : " E") + "ach rank's own words are in " +
                    (folder_ / "rank-*.log").string() + ".");
  }
}

}  // namespace

void launch(const Job& job, const LaunchSettings& settings) { Launcher(job, settings).run(); }

int64_t host_cores() {
  if (const char* cores = std::getenv(kCoresVariable)) return std::atoll(cores);
  return static_cast<int64_t>(usable_cores().size());
}

void take_cores_from_launcher() {
  if (const char* launcher = std::getenv(kLauncherVariable)) {
    // When the launcher is killed its ranks end too.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (std::to_string(getppid()) != launcher) std::_Exit(static_cast<int>(ExitCode::kTerminated));
  }
  const auto cores = usable_cores();
  ::setenv(kCoresVariable, std::to_string(cores.size()).c_str(), 1);
  if (const char* pin = std::getenv(kPinVariable)) {
    size_t place = 0, places = 0;
    char slash = 0;
    if (!(std::istringstream(pin) >> place >> slash >> places)) return;
    if (place >= places || places > cores.size()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cores[place], &set);
    sched_setaffinity(0, sizeof set, &set);  // best effort: a rank that is not pinned is only slower
  }
}

}  // namespace pipewright
