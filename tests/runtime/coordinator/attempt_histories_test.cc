// Jobs whose ranks are lost, in virtual time: a launcher with processes that die, hang, fail, end slowly,
// come back, in 100,000 random histories, and as many streams of events that no launcher would send. What
// must hold of every command is worked out once more here, in a plainer way.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <set>

#include "runtime/coordinator/attempts.h"
#include "tests/runtime/coordinator/command_text.h"

using namespace pipewright;
using pipewright::testing::text_of;

namespace {

std::string text_of_event(const LauncherEvent& event) {
  const char* const endings[] = {"done", "lost", "failed", "followed"};
  const auto number = [](int64_t value) { return " " + std::to_string(value); };
  if (const auto* added = std::get_if<SlotAdded>(&event)) return "added" + number(added->slot);
  if (const auto* gone = std::get_if<SlotGone>(&event)) return "gone" + number(gone->slot);
  if (std::get_if<Begun>(&event)) return "begun";
  if (const auto* ended = std::get_if<ProcessEnded>(&event))
    return endings[static_cast<int>(ended->how)] + number(ended->attempt) + number(ended->slot);
  if (const auto* announced = std::get_if<LossAnnounced>(&event))
    return "missed" + number(announced->attempt) + (announced->slot ? number(*announced->slot) : "");
  if (const auto* kept = std::get_if<StateKept>(&event)) return "kept" + number(kept->minibatch);
  return "interrupted";
}

void hold(bool what, const char* text) {
  if (!what) throw std::logic_error(text);
}

struct Counts {
  int64_t attempts = 0, kills = 0, drains = 0, grown = 0, shrunk = 0, events = 0;
  std::map<Outcome, int64_t> outcomes;
};

// Attempts, and whether what it says is allowed.
class Judged {
 public:
  Judged(const AttemptRules& rules, Counts& counts) : rules_(rules), attempts_(rules), counts_(counts) {}

  std::vector<LauncherCommand> take(const LauncherEvent& event) {
    log_.push_back(event);
    ++counts_.events;
    if (!ended_) std::visit([&](const auto& happened) { note(happened); }, event);
    const auto commands = attempts_.take(event);
    for (const LauncherCommand& command : commands) {
      hold(!ended_, "nothing is said behind the end");
      std::visit([&](const auto& said) { judge(said); }, command);
    }
    hold(attempts_.attempt() == attempt_ && attempts_.ended() == ended_, "it knows what it has said");
    hold(ended_ || !begun_ || !running_.empty(), "somebody is waited for until the job ends");
    hold(ended_ || killed_ || !missing_ || rules_.on_loss == OnLoss::kEnd, "who misses a rank is stopped");
    said_.push_back(text_of(commands));
    return commands;
  }

  void replay() const {
    Attempts again(rules_);
    for (size_t k = 0; k < log_.size(); ++k)
      hold(text_of(again.take(log_[k])) == said_[k], "the same log gives the same commands");
  }

  std::string text() const {
    std::string text;
    for (size_t k = 0; k < log_.size(); ++k)
      text +=
          text_of_event(log_[k]) + (said_.size() > k && !said_[k].empty() ? " -> " + said_[k] : "") + "\n";
    return text;
  }

  int64_t attempt() const { return attempt_; }
  const std::set<Slot>& running() const { return running_; }
  bool ended() const { return ended_; }

 private:
  void note(const SlotAdded& added) { there_.insert(added.slot); }
  void note(const SlotGone& gone) { there_.erase(gone.slot); }
  void note(const Begun&) { begun_ = true; }
  void note(const ProcessEnded& ended) {
    if (ended.attempt != attempt_ || running_.erase(ended.slot) == 0) return;
    if (ended.how == Ending::kDone) ++done_;
    if (ended.how == Ending::kLost && !killed_ && rules_.on_loss == OnLoss::kContinue)
      there_.erase(ended.slot);
    if (ended.how == Ending::kFailed && !killed_) failed_ = true;
    if (ended.how != Ending::kDone && (ended.how != Ending::kFollowed || (!drained_ && !interrupted_)))
      missing_ = true;
    if (!running_.empty()) return;
    barren_ += missing_ && !kept_;
    missing_ = false;  // nobody is left who could
  }
  void note(const LossAnnounced& announced) {
    if (announced.attempt != attempt_ || running_.empty()) return;
    missing_ = true;
    if (killed_ || !announced.slot || running_.count(*announced.slot) == 0) return;
    if (rules_.on_loss == OnLoss::kContinue) there_.erase(*announced.slot);
    if (rules_.on_loss == OnLoss::kRestart) silent_ = announced.slot;
  }
  void note(const StateKept& kept) {
    if (kept.minibatch <= std::exchange(newest_, kept.minibatch)) return;
    kept_ = true;
    barren_ = 0;
  }
  void note(const Interrupted&) { interrupted_ = begun_ = true; }

  void judge(const StartAttempt& start) {
    const std::vector<Slot>& slots = start.slots;
    const auto ranks = static_cast<int64_t>(slots.size());
    hold(start.attempt == attempt_ + 1, "attempts ascend by one");
    hold(running_.empty(), "all of the attempt before have ended");
    hold(begun_ && !interrupted_ && !failed_, "the job goes on");
    hold(attempt_ < 0 || done_ < static_cast<int64_t>(slots_.size()), "the job is not done");
    hold(barren_ < rules_.most_fruitless, "few attempts in a row are lost without newer state");
    hold(attempt_ < 0 || rules_.on_loss != OnLoss::kEnd, "a job that ends with a loss has one attempt");
    hold(std::set<Slot>(slots.begin(), slots.end()).size() == slots.size(), "a slot has one process");
    for (const Slot slot : slots)
      hold(there_.count(slot) == 1, "a slot that was lost or is gone is not used");
    if (rules_.on_loss == OnLoss::kContinue) {
      hold(ranks == std::min(rules_.ranks, static_cast<int64_t>(there_.size())),
           "as many ranks as there are");
      hold(ranks >= rules_.fewest, "no fewer than the fewest");
    } else {
      hold(ranks == rules_.ranks, "as many ranks as the plan has");
    }
    std::vector<Slot> stayed;
    for (size_t rank = 0; rank < slots_.size(); ++rank) {
      if (there_.count(slots_[rank]) == 0) continue;
      if (slots_[rank] == silent_ && static_cast<int64_t>(there_.size()) > rules_.ranks) continue;
      stayed.push_back(slots_[rank]);
      if (slots.size() >= slots_.size()) hold(slots[rank] == slots_[rank], "who stays has its rank");
    }
    if (silent_ && std::find(slots.begin(), slots.end(), *silent_) != slots.end())
      hold(there_.size() == slots.size(), "who went silent waits behind the spares");
    silent_.reset();
    auto at = slots.begin();
    for (const Slot slot : stayed)
      hold((at = std::find(at, slots.end(), slot)) != slots.end(), "order stays");
    ++counts_.attempts;
    counts_.grown += attempt_ >= 0 && slots.size() > slots_.size();
    counts_.shrunk += slots.size() < slots_.size();
    attempt_ = start.attempt;
    slots_ = slots;
    running_ = {slots.begin(), slots.end()};
    killed_ = drained_ = missing_ = kept_ = false;
    done_ = 0;
  }

  void judge(const StopAttempt& stop) {
    hold(stop.attempt == attempt_ && !running_.empty(), "what is stopped runs");
    hold(rules_.on_loss != OnLoss::kEnd, "a job that ends with a loss stops nothing");
    hold(!killed_, "what is killed is not stopped again");
    if (stop.drain) {
      hold(!drained_ && !missing_ && !interrupted_, "only what is whole is drained, and once");
      hold(rules_.on_loss == OnLoss::kContinue && static_cast<int64_t>(slots_.size()) < rules_.ranks &&
               there_.size() > slots_.size(),
           "a drain adds a rank");
    } else {
      hold(missing_, "only what misses a rank is killed");
    }
    (stop.drain ? counts_.drains : counts_.kills) += 1;
    (stop.drain ? drained_ : killed_) = true;
  }

  void judge(const EndJob& end) {
    hold(running_.empty(), "all have ended");
    const bool done = attempt_ >= 0 && done_ == static_cast<int64_t>(slots_.size());
    hold(end.outcome == (failed_        ? Outcome::kFailed
                         : done         ? Outcome::kDone
                         : interrupted_ ? Outcome::kInterrupted
                                        : Outcome::kLost),
         "it ends as it went");
    hold(end.reason.empty() ||
             (end.outcome == Outcome::kLost && (rules_.on_loss != OnLoss::kEnd || attempt_ < 0)),
         "a reason is of what is missing");
    const bool enough = static_cast<int64_t>(there_.size()) >=
                        (rules_.on_loss == OnLoss::kContinue ? rules_.fewest : rules_.ranks);
    if (end.outcome == Outcome::kLost && !end.reason.empty())
      hold(!enough || barren_ == rules_.most_fruitless, "it ends only if it cannot go on");
    ++counts_.outcomes[end.outcome];
    ended_ = true;
  }

  const AttemptRules rules_;
  Attempts attempts_;
  Counts& counts_;
  std::vector<LauncherEvent> log_;
  std::vector<std::string> said_;
  bool begun_ = false, interrupted_ = false, failed_ = false, ended_ = false;
  std::set<Slot> there_, running_;
  std::optional<Slot> silent_;
  int64_t attempt_ = -1, done_ = 0, newest_ = -1, barren_ = 0;
  std::vector<Slot> slots_;
  bool killed_ = false, drained_ = false, missing_ = false, kept_ = false;
};

class Dice {
 public:
  explicit Dice(uint64_t seed)
      : engine_(static_cast<std::minstd_rand::result_type>(seed * 2654435761u + 1)) {}
  int64_t upto(int64_t most) { return static_cast<int64_t>(engine_()) % (most + 1); }
  bool one_in(int64_t times) { return upto(times - 1) == 0; }
  AttemptRules rules() {
    AttemptRules rules;
    rules.on_loss = one_in(8) ? OnLoss::kEnd : one_in(3) ? OnLoss::kRestart : OnLoss::kContinue;
    rules.ranks = 1 + upto(5);
    rules.fewest = 1 + upto(rules.ranks - 1);
    rules.most_fruitless = 1 + upto(7);
    return rules;
  }

 private:
  std::minstd_rand engine_;
};

// A launcher, its hosts and its processes. Times are milliseconds.
class History {
 public:
  History(uint64_t seed, Counts& counts) : dice_(seed), rules_(dice_.rules()), job_(rules_, counts) {}

  void run() {
    const int64_t slots = rules_.ranks + dice_.upto(2) - dice_.one_in(8);
    for (Slot slot = 0; slot < slots; ++slot) come(slot);
    tell(Begun{});
    for (int64_t faults = dice_.upto(16); faults > 0; --faults)
      at(dice_.upto(90'000), [this] { something_happens(); });
    while (!events_.empty()) {
      now_ = events_.top().time;
      const auto action = events_.top().action;
      events_.pop();
      action();
    }
    hold(job_.ended(), "every job comes to its end");
    job_.replay();
  }
  std::string text() const { return job_.text(); }

 private:
  struct Process {
    int64_t attempt;
    Slot slot;
    bool runs = true, hangs = false;
  };
  struct Timed {
    int64_t time, number;
    std::function<void()> action;
    bool operator<(const Timed& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };

  void at(int64_t delay, std::function<void()> action) {
    events_.push({now_ + delay, number_++, std::move(action)});
  }

  void tell(const LauncherEvent& event) {
    if (dice_.one_in(8)) at(dice_.upto(20'000), [this, event] { carry_out(job_.take(event)); });
    carry_out(job_.take(event));
  }

  void carry_out(const std::vector<LauncherCommand>& commands) {
    for (const LauncherCommand& command : commands) {
      if (const auto* start = std::get_if<StartAttempt>(&command)) begin(*start);
      if (const auto* stop = std::get_if<StopAttempt>(&command)) stop_all(*stop);
    }
  }

  void begin(const StartAttempt& start) {
    for (const Process& process : processes_) hold(!process.runs, "no two attempts' processes at a time");
    processes_.clear();
    whole_ = true;
    const int64_t length = 1'000 + dice_.upto(80'000);
    for (const Slot slot : start.slots) {
      processes_.push_back({start.attempt, slot});
      const bool starts = here_.count(slot) == 1;
      at(starts ? length + dice_.upto(1'000) : dice_.upto(500),
         [this, attempt = start.attempt, slot, starts] {
           Process* process = running(attempt, slot);
           if (process && !starts) lose(*process);
           if (process && starts && whole_ && !process->hangs) ends(*process, Ending::kDone);
         });
    }
    for (int64_t delay = dice_.upto(20'000); delay < length; delay += 10'000 + dice_.upto(10'000))
      at(delay, [this, attempt = start.attempt] { keep(attempt); });
  }

  void stop_all(const StopAttempt& stop) {
    if (stop.drain) keep(stop.attempt);
    for (const Process& each : processes_) {
      at(dice_.upto(3'000), [this, stop, slot = each.slot] {
        Process* process = running(stop.attempt, slot);
        if (!process || (stop.drain && (process->hangs || !whole_))) return;
        const Ending killed = dice_.one_in(4) ? static_cast<Ending>(dice_.upto(3)) : Ending::kLost;
        ends(*process, stop.drain ? Ending::kFollowed : killed);
      });
    }
  }

  Process* running(int64_t attempt, Slot slot) {
    for (Process& process : processes_)
      if (process.attempt == attempt && process.slot == slot && process.runs) return &process;
    return nullptr;
  }

  // The launcher is told now or a little later.
  void ends(Process& process, Ending how) {
    process.runs = false;
    const ProcessEnded ended{process.attempt, process.slot, how};
    if (how == Ending::kDone || dice_.one_in(2)) return tell(ended);
    at(dice_.upto(500), [this, ended] { tell(ended); });
  }

  void come(Slot slot) {
    here_.insert(slot);
    tell(SlotAdded{slot});
  }

  void keep(int64_t attempt) {
    if (job_.attempt() == attempt && whole_) tell(StateKept{kept_ += 10});
  }

  // Its place may be used again after a while.
  void lose(Process& process) {
    if (dice_.one_in(2)) at(500 + dice_.upto(20'000), [this, slot = process.slot] { come(slot); });
    misses(process);
    ends(process, Ending::kLost);
  }

  // The others, or the launcher, find out after a time; with kEnd they all end then, else they may.
  void misses(const Process& missed) {
    whole_ = false;
    at(500 + dice_.upto(5'000), [this, attempt = missed.attempt, slot = missed.slot] {
      bool any = false;
      for (const Process& process : processes_) any = any || (process.attempt == attempt && process.runs);
      if (!any) return;
      tell(LossAnnounced{attempt, dice_.one_in(2) ? std::optional(slot) : std::nullopt});
      for (size_t k = 0; k < processes_.size(); ++k) {
        if (rules_.on_loss != OnLoss::kEnd && !dice_.one_in(3)) continue;
        at(dice_.upto(2'000), [this, attempt, other = processes_[k].slot] {
          Process* process = running(attempt, other);
          if (process && (!process->hangs || rules_.on_loss == OnLoss::kEnd))
            ends(*process, process->hangs ? Ending::kLost : Ending::kFollowed);
        });
      }
    });
  }

  void something_happens() {
    std::vector<Process*> running;
    for (Process& process : processes_)
      if (process.runs && !process.hangs) running.push_back(&process);
    const auto any = [&]() -> Process& {
      return *running[static_cast<size_t>(dice_.upto(static_cast<int64_t>(running.size()) - 1))];
    };
    switch (dice_.upto(9)) {
      case 0:
        return come(dice_.upto(9));
      case 1:  // a signal: who runs ends, unless it waits for one that does not
        if (!dice_.one_in(4)) return;
        tell(Interrupted{});
        for (const Process& each : processes_) {
          at(dice_.upto(2'000), [this, attempt = each.attempt, slot = each.slot] {
            Process* process = this->running(attempt, slot);
            if (process && !process->hangs && whole_) ends(*process, Ending::kFollowed);
          });
        }
        return;
      case 2:
        return go(dice_.upto(9));
      case 3:
        if (running.empty() || !dice_.one_in(8)) return;
        misses(any());
        return ends(any(), Ending::kFailed);
      case 4:
      case 5:
        if (running.empty()) return;
        misses(any());  // of nobody: a connection broke
        return;
      case 6:
        if (running.empty()) return;
        {
          Process& process = any();
          process.hangs = true;
          return misses(process);
        }
      default:  // one or more at once
        for (const Process& each : std::vector(processes_)) {
          Process* process = this->running(each.attempt, each.slot);
          if (process && dice_.one_in(static_cast<int64_t>(processes_.size()))) lose(*process);
        }
    }
  }

  // A host is away for a while; whatever runs there is lost, before or behind the news of it.
  void go(Slot slot) {
    here_.erase(slot);
    const bool first = dice_.one_in(2);
    if (first) tell(SlotGone{slot});
    for (Process& process : processes_)
      if (process.slot == slot && process.runs) {
        lose(process);
        break;
      }
    if (!first) tell(SlotGone{slot});
    if (dice_.one_in(2)) at(dice_.upto(20'000), [this, slot] { come(slot); });
  }

  Dice dice_;
  const AttemptRules rules_;
  Judged job_;
  int64_t now_ = 0, number_ = 0, kept_ = 0;
  std::priority_queue<Timed> events_;
  std::set<Slot> here_;
  std::vector<Process> processes_;  // of the last attempt
  bool whole_ = true;               // nobody of it is missing
};

int64_t cases() {
  const char* given = std::getenv("PIPEWRIGHT_ATTEMPT_CASES");
  return given ? std::atoll(given) : 100'000;
}

template <typename Tried>
Counts all_of(const Tried& tried) {
  Counts counts;
  for (int64_t seed = 1; seed <= cases(); ++seed) tried(static_cast<uint64_t>(seed), counts);
  CHECK(counts.attempts > cases());
  return counts;
}

}  // namespace

TEST_CASE(
    "attempts: whatever happens to its processes and hosts, a job comes to its end and keeps the rules") {
  const Counts counts = all_of([](uint64_t seed, Counts& counts) {
    History history(seed, counts);
    try {
      history.run();
    } catch (const std::exception& error) {
      FAIL("seed " << seed << ": " << error.what() << "\n" << history.text());
    }
  });
  // All that can happen did.
  for (const int64_t often : {counts.kills, counts.drains, counts.grown, counts.shrunk})
    CHECK(often > cases() / 100);
  CHECK(counts.outcomes.size() == 4);
  for (const auto& [outcome, often] : counts.outcomes) CHECK(often > cases() / 100);
}

TEST_CASE("attempts: events that make no sense break no rule, and the ends of all processes end the job") {
  all_of([](uint64_t seed, Counts& counts) {
    Dice dice(seed);
    const AttemptRules rules = dice.rules();
    Judged job(rules, counts);
    try {
      const auto ended = [&](Slot slot) {
        return ProcessEnded{job.attempt(), slot,
                            dice.one_in(4) ? Ending::kLost : static_cast<Ending>(dice.upto(3))};
      };
      for (Slot slot = 0; slot < rules.ranks; ++slot) job.take(SlotAdded{slot});
      for (int64_t events = dice.upto(60); events > 0; --events) {
        const int64_t attempt = job.attempt() + (dice.one_in(4) ? dice.upto(2) - 1 : 0);
        const Slot slot = dice.upto(7);
        switch (dice.upto(11)) {
          case 0:
            job.take(SlotGone{slot});
            break;
          case 1:
          case 2:
            job.take(SlotAdded{slot});
            break;
          case 3:
            job.take(LossAnnounced{attempt, dice.one_in(2) ? std::optional(slot) : std::nullopt});
            break;
          case 4:
            job.take(StateKept{dice.upto(40)});
            break;
          case 5:
            dice.one_in(8) ? job.take(Interrupted{}) : job.take(Begun{});
            break;
          default: {
            ProcessEnded end = ended(slot);
            end.attempt = attempt;
            job.take(end);
          }
        }
      }
      job.take(Begun{});
      for (int64_t attempts = 0; !job.ended(); ++attempts) {
        hold(attempts <= rules.most_fruitless + 1, "without newer state there are few attempts more");
        for (const Slot slot : std::set<Slot>(job.running())) job.take(ended(slot));
      }
      job.replay();
    } catch (const std::exception& error) {
      FAIL("seed " << seed << ": " << error.what() << "\n" << job.text());
    }
  });
}
