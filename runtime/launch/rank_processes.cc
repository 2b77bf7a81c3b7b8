#include "runtime/launch/rank_processes.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "graph/error.h"
#include "runtime/control/attempt_number.h"
#include "runtime/control/board.h"
#include "runtime/control/heartbeat.h"
#include "runtime/control/signals.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/rank_process.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

// Something to read now, or the end.
bool more_output(const Child& child) {
  pollfd waiting{child.output, POLLIN, 0};
  return child.output >= 0 && poll(&waiting, 1, 0) == 1;
}

// Which of the ranks of its host it is, and how many there are.
std::pair<int64_t, int64_t> local_place(const std::vector<std::string>& hosts, int64_t rank) {
  const std::string& own = hosts[static_cast<size_t>(rank)];
  return {std::count(hosts.begin(), hosts.begin() + rank, own), std::count(hosts.begin(), hosts.end(), own)};
}

}  // namespace

bool Child::exited_with(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

std::vector<std::string> variables_of(const RankPlaces& places, int64_t rank) {
  const std::string& host = places.hosts[static_cast<size_t>(rank)];
  const auto [local_rank, local_ranks] = local_place(places.hosts, rank);
  std::vector<std::string> variables;
  const auto set = [&](const std::string& name, const std::string& value) {
    variables.push_back(name + "=" + value);
  };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(local_ranks));
  set("WORLD_SIZE", std::to_string(places.hosts.size()));
  set("MASTER_ADDR", places.address);
  set("MASTER_PORT", std::to_string(places.port));
  set("PIPEWRIGHT_STORE_IS_SERVED", "1");
  if (places.attempt > 0) set(kAttemptVariable, std::to_string(places.attempt));
  if (host.empty()) {
    set(kLauncherVariable, std::to_string(getpid()));
  } else {
    set("PIPEWRIGHT_HOST", host);
  }
  // Idle OpenMP threads that spin would steal the cores of other ranks.
  if (!std::getenv("OMP_NUM_THREADS")) set("OMP_NUM_THREADS", std::to_string(places.threads));
  if (!places.tells_progress)
    set("PIPEWRIGHT_NO_PROGRESS", "1");
  else if (isatty(STDERR_FILENO))
    set("PIPEWRIGHT_PROGRESS_TERMINAL", "1");
  if (places.pin && places.threads == 1)
    set(kPinVariable, std::to_string(local_rank) + "/" + std::to_string(local_ranks));
  return variables;
}

RankProcesses::RankProcesses(const LaunchSettings& settings, std::string secret, std::filesystem::path folder,
                             bool hidden)
    : settings_(settings), secret_(std::move(secret)), folder_(std::move(folder)), hidden_(hidden) {}

void RankProcesses::start(const RankPlaces& places) {
  children_.clear();
  shown_ = WithoutErrors();
  for (size_t i = 0; i < places.hosts.size(); ++i) {
    Child child;
    child.slot = places.slots[i];
    child.rank = static_cast<int64_t>(i);
    child.host = places.hosts[i];
    const auto log = log_of(child.rank);
    child.log.open(log, places.attempt == 0 ? std::ios::trunc : std::ios::app);
    if (!child.log) throw RunError(log.string() + ": cannot be written: " + std::strerror(errno));
    const RankProcess process =
        start_rank({child.rank, child.host, settings_.command, settings_.arguments,
                    variables_of(places, child.rank), secret_, settings_.remote_shell, settings_.results});
    child.pid = process.pid;
    child.output = process.output;
    child.running = true;
    children_.push_back(std::move(child));
  }
}

void RankProcesses::take_output() {
  std::vector<pollfd> waiting;
  for (const Child& child : children_) waiting.push_back({child.output, POLLIN, 0});
  poll(waiting.data(), waiting.size(), 50);
  for (size_t i = 0; i < children_.size(); ++i)
    if (waiting[i].revents != 0) read_output(children_[i]);
}

void RankProcesses::take_last_output(size_t child) {
  while (more_output(children_[child])) read_output(children_[child]);
}

void RankProcesses::drain_output(bool wait) {
  const auto until = Clock::now() + 1s;
  for (Child& child : children_) {
    while (child.output >= 0 && (more_output(child) || (wait && Clock::now() < until))) {
      if (more_output(child)) {
        read_output(child);
      } else {
        poll(nullptr, 0, 5);
      }
    }
    if (child.output >= 0) close(std::exchange(child.output, -1));
  }
}

void RankProcesses::read_output(Child& child) {
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
  if (child.rank != 0) return;
  const std::string text = shown_.take({buffer.data(), static_cast<size_t>(got)});
  if (settings_.show)
    settings_.show(text);
  else
    std::cerr << text << std::flush;
}

std::vector<size_t> RankProcesses::newly_ended() {
  std::vector<size_t> ended;
  for (size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    if (!child.running || waitpid(child.pid, &child.status, WNOHANG) == 0) continue;
    child.running = false;
    ended.push_back(i);
  }
  return ended;
}

bool RankProcesses::all_done() const {
  return std::all_of(children_.begin(), children_.end(),
                     [](const Child& child) { return child.exited_with(0); });
}

void RankProcesses::signal_all(int signal) const {
  for (const Child& child : children_) {
    if (!child.running) continue;
    if (signal != SIGKILL && !child.host.empty()) continue;
    kill(child.pid, signal);
    if (signal == SIGKILL) kill(child.pid, SIGCONT);
  }
}

void RankProcesses::signal_rank(const Child& child, int signal, Store& store) const {
  if (child.host.empty()) {
    kill(child.pid, signal);
    return;
  }
  try {
    const RankReport report = Board(store).report_of(child.rank);
    if (report.process)
      run_elsewhere(settings_.remote_shell, child.host,
                    {"kill", "-" + std::to_string(signal), std::to_string(report.process->pid)}, 3s);
  } catch (const Error&) {
    // Its store has gone, and it will end by itself; or its host has.
  }
}

void RankProcesses::end() {
  signal_all(SIGKILL);
  for (Child& child : children_) {
    if (child.running) waitpid(child.pid, &child.status, 0);
    child.running = false;
  }
}

std::filesystem::path RankProcesses::log_of(int64_t rank) const {
  return folder_ / ((hidden_ ? ".rank-" : "rank-") + std::to_string(rank) + ".log");
}

void RankProcesses::show_logs(const std::filesystem::path& folder) {
  for (const Child& child : children_) {
    const auto from = log_of(child.rank);
    const auto to = folder / ("rank-" + std::to_string(child.rank) + ".log");
    std::error_code error;
    std::filesystem::rename(from, to, error);
    if (!error) continue;
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, error);
    std::filesystem::remove(from, error);
  }
  folder_ = folder;
  hidden_ = false;
}

}  // namespace pipewright
