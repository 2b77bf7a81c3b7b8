#include "runtime/launch/launch.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/checkpoint/kept_inventory.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/control/attempt_number.h"
#include "runtime/control/board.h"
#include "runtime/control/control.h"
#include "runtime/control/heartbeat.h"
#include "runtime/coordinator/attempts.h"
#include "runtime/job/attempt.h"
#include "runtime/job/recovery_policy.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/hosts.h"
#include "runtime/launch/join.h"
#include "runtime/launch/rank_process.h"
#include "runtime/launch/rank_processes.h"
#include "runtime/launch/rendezvous.h"
#include "runtime/transport/open_files.h"
#include "runtime/transport/process_state.h"
#include "runtime/transport/signed_store.h"
#include "runtime/transport/store.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// After a signal the ranks end the minibatches that are under way and write a checkpoint.
constexpr std::chrono::seconds kCheckpointPatience = 120s;

// What the ranks find out by themselves they are to say.
constexpr std::chrono::duration<double> kPatienceBehindRanks = 1s;

// ssh's exit code where it cannot reach its host.
constexpr int kRemoteShellFailed = 255;

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

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Launcher {
 public:
  Launcher(const Job& job, const LaunchSettings& settings)
      : job_(job),
        settings_(settings),
        folder_(job.run.output),
        secret_(job_secret()),
        processes_(settings, secret_, folder_, /*hidden=*/settings.command == "train"),
        recovery_(settings.command == "train" ? job.run.recovery.on_loss : "end"),
        attempts_(rules_of(job, recovery_)) {
    const int64_t slots = job.world_size() + (recovers() ? job.run.recovery.spares : 0);
    if (settings.hosts.empty()) {
      hosts_.assign(static_cast<size_t>(slots), "");
    } else {
      for (const HostPlace& place : place_ranks_on_hosts(settings.hosts, slots)) hosts_.push_back(place.host);
    }
    if (recovery_.on_loss() == OnLoss::kContinue && (job.decides || !job.changes.empty())) {
      throw InputError("--on-loss continue does not go with --adapt " + job.run.adapt +
                           ": both decide which plan is in force",
                       "Leave out one of the two, or give --on-loss restart.");
    }
    if (recovery_.on_loss() == OnLoss::kRestart && job.run.recovery.spares > 0 && settings.hosts.empty()) {
      throw InputError("--spares " + std::to_string(job.run.recovery.spares) +
                           " is of no use with --on-loss restart on one host: a rank is started again in its "
                           "own place there",
                       "give --hosts FILE with places for them, or leave it out");
    }
    // A profile of another model, or one of which no plan can be made, is found before anything starts.
    if (recovery_.on_loss() == OnLoss::kContinue && job.world_size() > job.run.recovery.fewest) {
      try {
        check_plan_for_graph(*plan_of(job.world_size() - 1), *job.graph_of_plans);
      } catch (const Error& error) {
        throw InputError("--on-loss continue: its profile gives no plan for " +
                             std::to_string(job.world_size() - 1) + " of the ranks: " + error.what(),
                         "Give the profile of the model that is trained, for its batch size.");
      }
    }
  }

  void run() {
    // A host that is renamed meanwhile is still the one whose memory has the state.
    ::setenv("PIPEWRIGHT_HOST", this_process().host.c_str(), 1);
    if (settings_.command == "train") {
      lock_.emplace(folder_);
    } else {
      make_run_folder(folder_);
    }
    signal(SIGCHLD, SIG_DFL);  // inherited as ignored it would make waitpid lose the ranks' ends
    install_signal_handlers();
    terminate_at_hangup();
    try {
      for (size_t slot = 0; slot < hosts_.size(); ++slot) take(SlotAdded{static_cast<Slot>(slot)});
      take(Begun{});
      while (!end_) supervise();
      processes_.drain_output(/*wait=*/attempts_.ended());
    } catch (...) {
      processes_.end();
      take_logs_home();
      save_state();
      throw;
    }
    take_logs_home();
    report();
  }

 private:
  static AttemptRules rules_of(const Job& job, const RecoveryPolicy& recovery) {
    AttemptRules rules{recovery.on_loss(), job.world_size()};
    if (recovery.on_loss() != OnLoss::kContinue) return rules;
    rules.fewest = job.run.recovery.fewest;
    if (rules.fewest <= rules.ranks) return rules;
    throw InputError("--fewest " + std::to_string(rules.fewest) + ": the run has " +
                     std::to_string(rules.ranks) + (rules.ranks == 1 ? " rank" : " ranks"));
  }
  static Store serve_for(int64_t ranks, const std::string& secret, const std::string& address) {
    // A pipe, a log, connections to the store.
    demand_open_files(32 + 6 * ranks, "starting " + std::to_string(ranks) + " ranks");
    return Store::serve(0, "pipewright/0", secret, address);
  }
  bool recovers() const { return recovery_.on_loss() != OnLoss::kEnd; }

  // attempts: from one start of the ranks to the next
  void take(const LauncherEvent& event);
  void carry_out(const StartAttempt& start);
  void carry_out(const StopAttempt& stop);
  void carry_out(const EndJob& end) { end_ = end; }
  void describe_attempt();
  std::optional<Plan> plan_of(int64_t slots) const;
  void tell_state_kept();
  void look_for_loss();
  void look_for_stopped();
  void note_loss(const Failure& failure);
  void follow(const Failure& failure);
  std::string join(const JoinRequest& request);

  RankPlaces places() const;
  void supervise();
  bool have_begun() { return store_ && Board(*store_).has_begun(); }
  bool began_or_has_begun() { return began_ || have_begun(); }
  void take_logs_home();
  void reap();
  void note_end(size_t index);
  Ending ending_of(const Child& child) const;
  std::string words_about(int64_t rank);
  void tell_interruption();
  bool host_answers(const std::string& host) const;
  std::filesystem::path save_state();
  int ended_by_signal() const;
  void report();

  const Job& job_;
  const LaunchSettings& settings_;
  const std::filesystem::path folder_;
  const std::string secret_;
  RankProcesses processes_;
  const RecoveryPolicy recovery_;
  Attempts attempts_;
  std::vector<std::string> hosts_;  // by slot; "" = this one
  std::optional<EndJob> end_;
  std::optional<RunFolderLock> lock_;
  // This host's memory for the state, as the run folder has named it: that may have gone, with its links.
  std::set<std::filesystem::path> kept_here_;
  bool began_ = false;  // an attempt has made the run folder its own
  Clock::time_point looked_{};
  Clock::time_point looked_for_stopped_{};
  std::map<int64_t, Clock::time_point> stopped_since_;  // by rank, of this attempt
  const double job_began_at_seconds_ = unix_seconds();

  // Of the attempt under way, or the last.
  std::optional<Store> store_;
  int64_t attempt_ = 0;
  std::vector<Slot> slots_;         // by rank
  std::optional<Failure> failure_;  // the first
  double lost_at_seconds_ = 0;      // Unix time
  bool stopping_ = false;           // we end it
  bool passed_on_ = false;          // the signal that we have got
  std::optional<Clock::time_point> end_by_;
};

// What is between two starts of the ranks.

void Launcher::take(const LauncherEvent& event) {
  for (const LauncherCommand& command : attempts_.take(event))
    std::visit([this](const auto& what) { carry_out(what); }, command);
}

// The plan of so many ranks: the job's own, where all are there.
std::optional<Plan> Launcher::plan_of(int64_t slots) const {
  if (recovery_.on_loss() != OnLoss::kContinue) return std::nullopt;
  return slots == job_.world_size() ? job_.plan : recovery_.plan_for(slots, job_.plan);
}

void Launcher::carry_out(const StartAttempt& start) {
  processes_.drain_output(/*wait=*/false);
  if (have_begun()) began_ = true;
  slots_ = start.slots;
  attempt_ = start.attempt;
  if (attempt_ > 0) {
    try {
      describe_attempt();
    } catch (const Error& error) {
      end_ = EndJob{Outcome::kLost, error.what()};
      return;
    }
  }
  failure_.reset();
  stopping_ = false;
  end_by_.reset();
  store_.reset();  // whoever is late finds nothing any more
  store_ = serve_for(static_cast<int64_t>(slots_.size()), secret_, address_for_ranks(settings_));
  stopped_since_.clear();
  processes_.start(places());
  for (size_t unused = slots_.size(); unused < start.slots.size(); ++unused)
    take(ProcessEnded{attempt_, start.slots[unused], Ending::kDone});
}

// Says to people, and to its ranks, what attempt_ is; it takes no more of slots_ than its plan has ranks.
void Launcher::describe_attempt() {
  const auto slots = static_cast<int64_t>(slots_.size());
  std::string ranks = std::to_string(slots) + (slots == 1 ? " rank" : " ranks");
  Attempt told;
  told.number = attempt_;
  told.reason = failure_ ? failure_->message : "a further rank has come";
  told.lost_at_seconds = failure_ ? lost_at_seconds_ : unix_seconds();
  told.job_began_at_seconds = job_began_at_seconds_;
  try {
    told.plan = plan_of(slots);
  } catch (const Error& error) {
    throw PlanError("there is no plan for " + ranks + ": " + error.what(), error.remedy());
  }
  if (told.plan && told.plan->world_size < slots) {
    slots_.resize(static_cast<size_t>(told.plan->world_size));
    ranks = std::to_string(slots_.size()) + " of " + ranks + ", which are faster";
  }
  std::cerr << told.reason << "\nstart " << attempt_ + 1 << " of the ranks: " << ranks
            << (told.plan ? ", " + told.plan->shape_text() : "") << "\n"
            << std::flush;
  told.began = began_;
  write_attempt(folder_, told);
}

// Nothing of these processes is needed any more, but for those that are to leave a checkpoint first.
void Launcher::carry_out(const StopAttempt& stop) {
  stopping_ = true;
  if (stop.drain) {
    end_by_ = Clock::now() + kCheckpointPatience;
    const auto one = std::find_if(processes_.all().begin(), processes_.all().end(),
                                  [](const Child& child) { return child.running; });
    if (one != processes_.all().end()) processes_.signal_rank(*one, SIGTERM, *store_);  // it tells the others
    return;
  }
  if (failure_) Board(*store_).announce_failure(*failure_);
  for (const bool here : {true, false})  // other hosts may be slow to answer
    for (const Child& child : processes_.all())
      if (child.running && child.host.empty() == here) processes_.signal_rank(child, SIGKILL, *store_);
  end_by_ = Clock::now() + 10s;  // for remote shells
}

// From where the next attempt would go on.
void Launcher::tell_state_kept() {
  const auto target = target_of_kept_place(kept_state_of(folder_));
  if (!target.empty()) kept_here_.insert(target);
  const auto written = list_checkpoints(folder_);
  int64_t newest = written.empty() ? 0 : minibatch_of(written.front()).value_or(0);
  newest = std::max(newest, newest_kept(folder_).value_or(0));
  if (!settings_.hosts.empty() && store_) {
    if (const auto told = Board(*store_).newest_kept()) newest = std::max(newest, *told);
  }
  take(StateKept{newest});
}

// Has a rank, or the store's other users, said that one is missed?
void Launcher::look_for_loss() {
  if (!recovers() || stopping_ || failure_ || !store_) return;
  const auto announced = Board(*store_).failure();
  if (!announced || announced->code != ExitCode::kPeerLost) return;
  note_loss(*announced);
  LossAnnounced loss{attempt_, std::nullopt};
  if (announced->lost && *announced->lost < static_cast<int64_t>(slots_.size()))
    loss.slot = slots_[static_cast<size_t>(*announced->lost)];
  take(loss);
}

// Of the ranks of this host. Until all have begun they wait for one that is late as long as for one that is
// stopped; behind that they notice it themselves, unless all are stopped.
void Launcher::look_for_stopped() {
  const auto before = std::exchange(looked_for_stopped_, Clock::now());
  if (looked_for_stopped_ > before + 3s) stopped_since_.clear();  // this process was stopped, too
  if (stopping_ || failure_ || !store_) return;
  const bool starts = !Board(*store_).is_open(kStartMeeting);
  const double patience = job_.run.timeout_seconds + (starts ? 0 : kPatienceBehindRanks.count());
  for (const Child& child : processes_.all()) {
    if (!child.running || !child.host.empty() || state_of_pid(child.pid) != ProcessState::kStopped) {
      stopped_since_.erase(child.rank);
      continue;
    }
    const auto since = stopped_since_.emplace(child.rank, Clock::now()).first->second;
    const std::chrono::duration<double> seconds = Clock::now() - since;
    if (seconds.count() < patience) continue;
    Failure failure{child.rank, ExitCode::kPeerLost,
                    "rank " + std::to_string(child.rank) + " (process " + std::to_string(child.pid) +
                        ") is stopped (SIGSTOP or a debugger)" + (starts ? " while the ranks start" : "")};
    failure.lost = child.rank;
    Board(*store_).announce_failure(failure);
    stopped_since_.clear();
    return;
  }
}

void Launcher::note_loss(const Failure& failure) {
  failure_ = failure;
  lost_at_seconds_ = unix_seconds();
  if (recovers()) tell_state_kept();
}

// Places for further ranks: behind those that are there, whether or not these have been lost.
std::string Launcher::join(const JoinRequest& request) {
  if (!request.host.empty() && settings_.hosts.empty())
    throw InputError(
        "--host " + request.host +
        ": the job's ranks are all on the launcher's host; start it with --hosts to have others");
  if (!request.host.empty() && !host_answers(request.host))
    throw InputError("--host " + request.host + ": it does not answer `" + settings_.remote_shell + " " +
                     request.host + " true` on the launcher's host");
  const int64_t before = attempt_;
  for (int64_t k = 0; k < request.ranks; ++k) {
    hosts_.push_back(request.host);
    take(SlotAdded{static_cast<Slot>(hosts_.size()) - 1});
  }
  const std::string what =
      request.ranks == 1 ? "a place for a rank" : std::to_string(request.ranks) + " places for ranks";
  if (stopping_ && attempt_ == before)
    return what + ": taken; the ranks leave a checkpoint and go on with more of them";
  return what + ": taken; " + (request.ranks == 1 ? "it waits" : "they wait") + " for the next loss";
}

// The processes of an attempt.

RankPlaces Launcher::places() const {
  RankPlaces places{
      attempt_,      slots_,         {}, address_for_ranks(settings_), store_->port(), job_.run.threads,
      settings_.pin, !settings_.show};
  for (const Slot slot : slots_) places.hosts.push_back(hosts_[static_cast<size_t>(slot)]);
  return places;
}

void Launcher::supervise() {
  processes_.take_output();
  if (settings_.often) settings_.often();
  // Before they have begun, which rank 0 says when it has made room, rank-*.log are an earlier run's.
  if (processes_.logs_are_hidden() && have_begun()) processes_.show_logs(folder_);
  if (received_signal != 0 && !passed_on_) {
    passed_on_ = true;
    processes_.signal_all(received_signal);
    if (!settings_.hosts.empty()) tell_interruption();
    if (!end_by_) end_by_ = Clock::now() + (job_.run.checkpoint.on_signal ? kCheckpointPatience : 10s);
    take(Interrupted{});
  }
  reap();  // a death that we see says more than what other ranks make of it
  look_for_loss();
  if (Clock::now() > looked_ + 1s) {
    looked_ = Clock::now();
    look_for_stopped();
    if (recovers()) {
      tell_state_kept();
      answer_join_requests(folder_, [this](const JoinRequest& request) { return join(request); });
    }
  }
  if (end_by_ && Clock::now() > *end_by_) {
    end_by_ = Clock::now() + 10s;
    processes_.signal_all(SIGKILL);
  }
}

// All ranks have ended. Where they never began, and an earlier run's logs are in the folder, these stay.
void Launcher::take_logs_home() {
  if (!processes_.logs_are_hidden()) return;
  if (began_or_has_begun() || !holds_earlier_run(folder_)) return processes_.show_logs(folder_);
  std::string beside = (std::filesystem::temp_directory_path() / "pipewright-start-XXXXXX").string();
  if (mkdtemp(beside.data()) != nullptr) processes_.show_logs(beside);
}

void Launcher::reap() {
  const std::vector<Child>& children = processes_.all();
  std::vector<size_t> ended = processes_.newly_ended();
  const auto is_lost = [this](size_t i) { return ending_of(processes_.all()[i]) == Ending::kLost; };
  if (recovery_.on_loss() == OnLoss::kContinue && !stopping_ &&
      std::any_of(ended.begin(), ended.end(), is_lost)) {
    // Ranks that were killed together: behind the first loss we kill the others ourselves, and who was lost
    // before cannot be told any more.
    poll(nullptr, 0, 20);
    for (const size_t i : processes_.newly_ended()) ended.push_back(i);
    bool first = true;
    for (const size_t i : ended)
      if (is_lost(i) && !std::exchange(first, false)) take(SlotGone{children[i].slot});
  }
  for (const size_t i : ended) {
    const Child& child = children[i];
    note_end(i);
    const Ending ending = ending_of(child);
    const Slot slot = child.slot;
    if (ending == Ending::kLost && !stopping_ && !child.host.empty() && !host_answers(child.host)) {
      for (size_t other = 0; other < hosts_.size(); ++other)
        if (hosts_[other] == child.host) take(SlotGone{static_cast<Slot>(other)});
    }
    const int64_t attempt = attempt_;
    take(ProcessEnded{attempt, slot, ending});
    if (attempt_ != attempt) return;  // others run now
  }
}

Ending Launcher::ending_of(const Child& child) const {
  if (!WIFEXITED(child.status)) return Ending::kLost;
  const auto code = static_cast<ExitCode>(WEXITSTATUS(child.status));
  if (code == ExitCode::kDone) return Ending::kDone;
  if (is_interruption(code)) return Ending::kFollowed;
  if (code == ExitCode::kPeerLost) {
    // It may be gone before the one whose error it heard of.
    const bool of_error =
        failure_ && failure_->code != ExitCode::kPeerLost && !is_interruption(failure_->code);
    return of_error ? Ending::kFailed : Ending::kFollowed;
  }
  return child.host.empty() || WEXITSTATUS(child.status) != kRemoteShellFailed ? Ending::kFailed
                                                                               : Ending::kLost;
}

// What it was last heard of doing, and who waits for it now.
std::string Launcher::words_about(int64_t rank) {
  std::string words;
  const auto reports = Board(*store_).reports_of_all(static_cast<int64_t>(slots_.size()));
  const std::string last = doing(reports[static_cast<size_t>(rank)]);
  if (!last.empty()) words += "; last heard of in " + last;
  const std::string waiting = who_waits_for(reports, rank);
  if (!waiting.empty()) words += "; " + waiting;
  return words;
}

// A rank that ends in any other way than by finishing ends the attempt. One that could still speak has told
// the others itself; a killed one has not.
void Launcher::note_end(size_t index) {
  const Child& child = processes_.all()[index];
  const bool exited = WIFEXITED(child.status);
  if (exited && WEXITSTATUS(child.status) == 0) return;
  if (!end_by_) {
    end_by_ =
        Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1000 * job_.run.timeout_seconds)) + 5s;
  }
  if (failure_ || stopping_) return;
  if (const auto announced = Board(*store_).failure()) {
    note_loss(*announced);
    if (recovers() && ending_of(child) == Ending::kFollowed) follow(*announced);
    return;
  }
  const std::string rank =
      "rank " + std::to_string(child.rank) + (child.host.empty() ? "" : " on " + child.host);
  const std::string words = words_about(child.rank);
  Failure failure{child.rank, ExitCode::kPeerLost, ""};
  if (exited) {
    // A remote shell that cannot reach its host ends with a code of its own.
    failure.code =
        child.host.empty() ? static_cast<ExitCode>(WEXITSTATUS(child.status)) : ExitCode::kPeerLost;
    processes_.take_last_output(index);
    const auto said = last_error(processes_.log_of(child.rank), failure.code);
    failure.message = said ? rank + ": " + said->what()
                           : rank + " ended with exit code " + std::to_string(WEXITSTATUS(child.status));
    if (said) failure.remedy = said->remedy();
  } else {
    failure.lost = child.rank;
    failure.message = rank + " was killed by signal " + std::to_string(WTERMSIG(child.status)) + " (" +
                      strsignal(WTERMSIG(child.status)) + ")" + words;
  }
  note_loss(failure);
  if (!recovers() || ending_of(child) == Ending::kFailed) Board(*store_).announce_failure(failure);
  if (recovers() && ending_of(child) == Ending::kFollowed) follow(failure);
}

// A rank has ended because of it, and says so before we have heard of it otherwise.
void Launcher::follow(const Failure& failure) {
  if (is_interruption(failure.code)) {
    take(Interrupted{});  // somebody has sent a signal to a rank
  } else if (failure.code == ExitCode::kPeerLost) {
    take(LossAnnounced{attempt_, std::nullopt});
  }
}

// A remote shell passes no signals on: its rank hears of them over the store.
void Launcher::tell_interruption() {
  Board(*store_).announce_failure(
      {0, exit_code_of_signal(received_signal), words_of_signal(received_signal)});
}

bool Launcher::host_answers(const std::string& host) const {
  return run_elsewhere(settings_.remote_shell, host, {"true"}, 5s);
}

// The signal that ended the job, whichever of its processes got it; 0: none did.
int Launcher::ended_by_signal() const {
  if (processes_.all_done()) return 0;
  if (received_signal != 0) return received_signal;
  for (const int signal : {SIGINT, SIGTERM}) {
    if (failure_ && failure_->code == exit_code_of_signal(signal)) return signal;
  }
  return 0;
}

// What was kept in memory: of a job that is not done it becomes a checkpoint, whose folder this returns.
std::filesystem::path Launcher::save_state() {
  if (!recovers()) return {};
  std::filesystem::path saved;
  try {
    const bool done = end_ && end_->outcome == Outcome::kDone;
    if (!done && began_or_has_begun()) saved = save_kept_state(folder_, on_host_of(settings_));
    remove_kept_states(folder_, on_host_of(settings_));
    std::error_code ignored;
    for (const auto& memory : kept_here_) std::filesystem::remove_all(memory, ignored);
  } catch (const Error& error) {
    std::cerr << "warning: " << error.what() << "\n";
  }
  std::error_code ignored;
  std::filesystem::remove(attempt_file(folder_), ignored);
  answer_join_requests(folder_,
                       [](const JoinRequest&) -> std::string { throw InputError("the job has ended"); });
  return saved;
}

void Launcher::report() {
  const bool done = end_->outcome == Outcome::kDone;
  const bool has_trained = settings_.command == "train" && began_or_has_begun();
  const std::filesystem::path saved = save_state();
  if (const int signal = ended_by_signal()) {
    std::cerr << processes_.errors_of_rank_0() << std::flush;  // what rank 0 has left
    throw Error(exit_code_of_signal(signal), words_of_signal(signal) + "; all ranks have ended",
                !file_exists(folder_ / "metrics.jsonl")
                    ? "nothing had been trained"
                    : "what was trained until then is in " + (folder_ / "metrics.jsonl").string() +
                          (list_checkpoints(folder_).empty() ? "" : "; go on with --resume latest"));
  }
  if (done) return;
  Failure failure = failure_.value_or(Failure{0, ExitCode::kPeerLost, "the ranks have ended"});
  if (!end_->reason.empty()) failure.message += "; " + end_->reason;
  const auto advise = [&failure](const std::string& words) {
    if (failure.remedy.ends_with('.')) failure.remedy.pop_back();
    failure.remedy += (failure.remedy.empty() ? "" : "; ") + words;
  };
  // Where numbers have gone wrong they would again.
  const bool may_go_on = failure.code == ExitCode::kFailed || failure.code == ExitCode::kPeerLost;
  if (!saved.empty())
    advise("what was trained until then is in " + saved.string() + ": go on with --resume latest");
  else if (const auto written = list_checkpoints(folder_); may_go_on && has_trained && !written.empty())
    advise("the last checkpoint is " + written.front().string() + ": go on with --resume latest");
  if (!recovers() && settings_.command == "train" && failure.code == ExitCode::kPeerLost)
    advise("--on-loss restart goes on after a loss");
  throw Error(failure.code, failure.message, with_logs(failure.remedy, processes_.logs()));
}

}  // namespace

OnHost on_host_of(const LaunchSettings& settings) {
  if (settings.hosts.empty()) return {};
  return [shell = settings.remote_shell](const std::string& host, const std::vector<std::string>& words) {
    return run_elsewhere(shell, host, {"true"}, 5s) && run_elsewhere(shell, host, words, kCheckpointPatience);
  };
}

void launch(const Job& job, const LaunchSettings& settings) { Launcher(job, settings).run(); }

}  // namespace pipewright
