#include "runtime/launch/launch.h"

#include <poll.h>
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

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/control/control.h"
#include "runtime/control/heartbeat.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/hosts.h"
#include "runtime/launch/rank_output.h"
#include "runtime/launch/rank_process.h"
#include "runtime/launch/rendezvous.h"
#include "runtime/transport/open_files.h"
#include "runtime/transport/signed_store.h"
#include "runtime/transport/store.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// After a signal the ranks end the minibatches that are under way and write a checkpoint.
constexpr std::chrono::seconds kCheckpointPatience = 120s;

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

// The remedy, if any, and behind it where to read more.
std::string with_logs(const std::string& remedy, const std::filesystem::path& folder) {
  const std::string logs = "ach rank's own words are in " + (folder / "rank-*.log").string() + ".";
  if (remedy.empty()) return "E" + logs;
  return remedy + (remedy.ends_with(".") ? " E" : "; e") + logs;
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
      take_logs_home();
      throw;
    }
    take_logs_home();
    report();
  }

 private:
  static Store serve_for(int64_t ranks, const std::string& secret, const std::string& address) {
    // A pipe, a log, connections to the store.
    demand_open_files(32 + 6 * ranks, "starting " + std::to_string(ranks) + " ranks");
    return Store::serve(0, "pipewright/0", secret, address);
  }
  // Until the ranks have begun, which rank 0 says when it has made room, rank-*.log are an earlier run's.
  std::filesystem::path log_of(int64_t rank) const {
    return logs_ / ((logs_are_hidden_ ? ".rank-" : "rank-") + std::to_string(rank) + ".log");
  }
  void start(int64_t rank);
  std::vector<std::string> variables_of(int64_t rank) const;
  void supervise();
  bool have_begun();
  void take_logs_home();
  void move_logs(const std::filesystem::path& folder);
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
  std::filesystem::path logs_ = folder_;
  bool logs_are_hidden_ = settings_.command == "train";
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
  set("LOCAL_WORLD_SIZE", std::to_string(place.local_ranks));
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
  const auto log = log_of(rank);
  child.log.open(log, std::ios::trunc);
  if (!child.log) throw RunError(log.string() + ": cannot be written: " + std::strerror(errno));
  const RankProcess process =
      start_rank({rank, child.host, settings_.command, settings_.arguments, variables_of(rank), secret_,
                  settings_.remote_shell, settings_.results});
  child.pid = process.pid;
  child.output = process.output;
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
    if (logs_are_hidden_ && have_begun()) move_logs(folder_);
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

bool Launcher::have_begun() { return store_.has(kBegunKey); }

// The streams go on writing into the files.
void Launcher::move_logs(const std::filesystem::path& folder) {
  for (const Child& child : children_) {
    const auto from = log_of(child.rank);
    const auto to = folder / ("rank-" + std::to_string(child.rank) + ".log");
    std::error_code error;
    std::filesystem::rename(from, to, error);
    if (!error) continue;
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, error);
    std::filesystem::remove(from, error);
  }
  logs_ = folder;
  logs_are_hidden_ = false;
}

// All ranks have ended. Where they never began, and an earlier run's logs are in the folder, these stay.
void Launcher::take_logs_home() {
  if (!logs_are_hidden_) return;
  if (have_begun() || !holds_earlier_run(folder_)) return move_logs(folder_);
  std::string beside = (std::filesystem::temp_directory_path() / "pipewright-start-XXXXXX").string();
  if (mkdtemp(beside.data()) != nullptr) move_logs(beside);
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
  std::string words;  // what it was last heard of doing, and who waits for it now
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
    const auto log = log_of(child.rank);
    while (child.output >= 0 && more_output(child)) read_output(child);
    const auto said = last_error(log, failure.code);
    failure.message = said ? rank + ": " + said->what()
                           : rank + " ended with exit code " + std::to_string(WEXITSTATUS(child.status));
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
    throw Error(failure_->code, failure_->message, with_logs(failure_->remedy, logs_));
  }
}

}  // namespace

void launch(const Job& job, const LaunchSettings& settings) { Launcher(job, settings).run(); }

}  // namespace pipewright
