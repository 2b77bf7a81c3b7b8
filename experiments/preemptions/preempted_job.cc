#include "experiments/preemptions/preempted_job.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>

#include "graph/error.h"

namespace pipewright {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Playing {
 public:
  Playing(const PricedJob& job, JobFigures& figures) : job_(job), figures_(figures) {}

  void change(const SlotChange& change) {
    for (const Slot slot : change.gone) {
      there_.erase(slot);
      away_.insert(slot);
    }
    if (!change.gone.empty() && phase_ != Phase::kNone) count_lost_copies();
    if (phase_ == Phase::kTrains) tell(StateKept{newest()});
    for (const Slot slot : change.gone) end_process(slot, Ending::kLost);
    for (const Slot slot : change.gone) tell(SlotGone{slot});
    for (const Slot slot : change.come) {
      there_.insert(slot);
      tell(SlotAdded{slot});
    }
    begin_job();
  }

  // Up to a time before which nothing but this job's own phases and checkpoints happens.
  void advance(double to) {
    while (now_ < to) {
      const double next = std::min({to, until_, next_checkpoint_});
      spend(next - now_);
      now_ = next;
      if (now_ == next_checkpoint_) {
        next_checkpoint_ += job_.checkpoint_seconds;
        if (phase_ == Phase::kTrains) disk_ = static_cast<int64_t>(progress_);
      }
      if (now_ == until_) phase_ends();
    }
  }

  void finish() {
    figures_.minibatches =
        phase_ == Phase::kStops || phase_ == Phase::kNone ? static_cast<double>(newest()) : progress_;
  }

 private:
  enum class Phase { kNone, kStarts, kTrains, kStops };

  double seconds_with(size_t ranks) const { return job_.minibatch_seconds[ranks - 1]; }

  void spend(double seconds) {
    const size_t ranks = std::min(there_.size(), job_.minibatch_seconds.size());
    if (ranks > 0) figures_.ideal += seconds / seconds_with(ranks);
    if (phase_ == Phase::kTrains) {
      progress_ += seconds * (1 - job_.copy_share) / seconds_with(slots_.size());
      copy();
    } else if (ranks > 0) {
      figures_.down_seconds += seconds;
    }
  }

  // The copy before the last is whole: the last one may be on its way.
  void copy() {
    if (job_.copy_every == 0) return;
    const auto every = static_cast<double>(job_.copy_every);
    const double whole = std::floor((progress_ - begin_) / every) - 1;
    if (whole < 0) return;
    copied_ = static_cast<int64_t>(begin_ + whole * every);
    holders_ = slots_;
    away_.clear();
  }

  // Rank r + 1 keeps the copy of rank r.
  bool copies_are_whole() const {
    for (size_t rank = 0; rank < holders_.size(); ++rank)
      if (away_.count(holders_[rank]) && away_.count(holders_[(rank + 1) % holders_.size()])) return false;
    return !holders_.empty();
  }

  void count_lost_copies() {
    if (holders_.empty() || copies_are_whole()) return;
    ++figures_.copies_lost;
    holders_.clear();
  }

  int64_t newest() const { return copies_are_whole() ? std::max(copied_, disk_) : disk_; }

  void begin_job() {
    const auto least = job_.rules.on_loss == OnLoss::kContinue ? job_.rules.fewest : job_.rules.ranks;
    if (attempts_ || static_cast<int64_t>(there_.size()) < least) return;
    attempts_.emplace(job_.rules);
    holders_.clear();
    tell(StateKept{disk_});
    for (const Slot slot : there_) tell(SlotAdded{slot});
    tell(Begun{});
  }

  void end_process(Slot slot, Ending how) {
    if (running_.erase(slot)) tell(ProcessEnded{attempts_->attempt(), slot, how});
  }

  void enter(Phase phase) {
    phase_ = phase;
    until_ = phase == Phase::kTrains || phase == Phase::kNone ? kNever : now_ + job_.recover_seconds / 2;
  }

  void phase_ends() {
    if (phase_ == Phase::kStarts) return enter(Phase::kTrains);
    const Ending how = draining_ ? Ending::kFollowed : Ending::kLost;
    for (const Slot slot : std::set<Slot>(running_)) end_process(slot, how);
  }

  void tell(const LauncherEvent& event) {
    if (!attempts_) return;
    for (const LauncherCommand& command : attempts_->take(event)) {
      if (const auto* start = std::get_if<StartAttempt>(&command)) {
        ++figures_.attempts;
        figures_.again += std::max(0.0, progress_ - static_cast<double>(newest()));
        begin_ = progress_ = static_cast<double>(newest());
        slots_ = start->slots;
        running_ = {slots_.begin(), slots_.end()};
        draining_ = false;
        enter(Phase::kStarts);
      } else if (const auto* stop = std::get_if<StopAttempt>(&command)) {
        draining_ = stop->drain;
        if (draining_ && job_.drains) disk_ = static_cast<int64_t>(progress_);
        enter(Phase::kStops);
        if (draining_ && job_.drains) tell(StateKept{disk_});
      } else {
        ++figures_.ends;
        attempts_.reset();
        running_.clear();
        enter(Phase::kNone);
        return;
      }
    }
  }

  const PricedJob& job_;
  JobFigures& figures_;
  double now_ = 0, until_ = kNever, next_checkpoint_ = job_.checkpoint_seconds;
  std::set<Slot> there_;
  std::optional<Attempts> attempts_;
  Phase phase_ = Phase::kNone;
  bool draining_ = false;
  std::vector<Slot> slots_, holders_;  // by rank: of the attempt; of the last whole copies
  std::set<Slot> running_, away_;      // away: at any time since those copies
  double progress_ = 0, begin_ = 0;    // minibatches
  int64_t disk_ = 0, copied_ = 0;
};

}  // namespace

PreemptionTrace draw(const DrawnTrace& rules) {
  std::mt19937_64 engine(rules.seed);
  // The standard says what the engine draws, but not what its distributions make of that.
  const auto uniform = [&] { return static_cast<double>(engine() >> 11) * 0x1p-53; };
  const auto exponential = [&](double mean) { return -mean * std::log1p(-uniform()); };
  PreemptionTrace trace(1);
  std::vector<Slot> there;
  for (Slot slot = 0; slot < rules.slots; ++slot) there.push_back(slot);
  trace[0].come = there;
  std::multimap<double, Slot> back;
  double next = exponential(rules.every_seconds);
  while (true) {
    SlotChange change;
    if (!back.empty() && back.begin()->first <= next) {
      change = {back.begin()->first, {}, {back.begin()->second}};
      there.push_back(back.begin()->second);
      back.erase(back.begin());
    } else {
      change.seconds = next;
      do {
        if (there.empty()) break;
        const auto at = there.begin() + static_cast<int64_t>(uniform() * static_cast<double>(there.size()));
        change.gone.push_back(*at);
        back.emplace(next + exponential(rules.absent_seconds), *at);
        there.erase(at);
      } while (uniform() < rules.another);
      next += exponential(rules.every_seconds);
    }
    if (change.seconds >= rules.seconds) return trace;
    trace.push_back(change);
  }
}

PreemptionTrace read_trace(const std::string& file, int64_t slots, int64_t thinned) {
  std::ifstream in(file);
  if (!in) throw InputError(file + " cannot be read", "--trace takes lines of milliseconds,add|remove,name");
  PreemptionTrace trace(1);
  std::map<std::string, Slot> placed;
  std::set<Slot> free;
  for (Slot slot = 0; slot < slots; ++slot) free.insert(slot);
  int64_t come = 0, number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream fields(line);
    std::string time, what, name;
    std::getline(fields, time, ',') && std::getline(fields, what, ',') && std::getline(fields, name, '\r');
    char* end = nullptr;
    const double seconds = std::strtod(time.c_str(), &end) / 1000;
    if (time.empty() || *end || !(seconds >= trace.back().seconds) || (what != "add" && what != "remove"))
      throw InputError(file + ":" + std::to_string(number) + ": got '" + line +
                       "', expected milliseconds,add|remove,name in order of time");
    if (seconds > trace.back().seconds) trace.push_back({seconds, {}, {}});
    if (what == "add") {
      if (come++ % thinned != 0 || free.empty()) continue;
      placed[name] = *free.begin();
      trace.back().come.push_back(*free.begin());
      free.erase(free.begin());
    } else if (const auto at = placed.find(name); at != placed.end()) {
      trace.back().gone.push_back(at->second);
      free.insert(at->second);
      placed.erase(at);
    }
  }
  return trace;
}

JobFigures play(const PreemptionTrace& trace, const PricedJob& job, double seconds) {
  PW_CHECK(static_cast<int64_t>(job.minibatch_seconds.size()) >= job.rules.ranks,
           "a time for each number of ranks");
  JobFigures figures;
  Playing playing(job, figures);
  for (const SlotChange& change : trace) {
    if (change.seconds >= seconds) break;
    playing.advance(change.seconds);
    playing.change(change);
  }
  playing.advance(seconds);
  playing.finish();
  return figures;
}

}  // namespace pipewright
