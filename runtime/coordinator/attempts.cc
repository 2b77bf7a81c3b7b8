#include "runtime/coordinator/attempts.h"

#include <algorithm>
#include <utility>

#include "graph/error.h"

namespace pipewright {

namespace {

std::string places_are(int64_t places) {
  if (places == 0) return "no place for a rank is";
  return places == 1 ? "1 place for a rank is" : std::to_string(places) + " places for ranks are";
}

std::string needed(int64_t ranks) {
  return std::to_string(ranks) + (ranks == 1 ? " is needed" : " are needed");
}

std::string lost_in_vain(int64_t attempts) {
  if (attempts == 1) return "an attempt was lost before newer state was kept";
  return std::to_string(attempts) + " attempts in a row were lost before newer state was kept";
}

}  // namespace

Attempts::Attempts(AttemptRules rules) : rules_(rules) {
  PW_CHECK(rules.ranks >= 1, "a job of " << rules.ranks << " ranks");
  PW_CHECK(rules.fewest >= 1 && rules.fewest <= rules.ranks,
           "at least " << rules.fewest << " ranks of " << rules.ranks);
  PW_CHECK(rules.most_fruitless >= 1, "the job would end after " << rules.most_fruitless << " attempts");
}

std::vector<LauncherCommand> Attempts::take(const LauncherEvent& event) {
  Commands commands;
  if (!ended_) std::visit([&](const auto& happened) { on(happened, commands); }, event);
  return commands;
}

void Attempts::on(const SlotAdded& added, Commands& commands) {
  if (is_there(added.slot)) return;
  there_.push_back(added.slot);
  // Where a process has ended already the run is about to end, and another rank would come too late.
  const bool all_run = !running_.empty() && running_.size() == slots_.size();
  if (rules_.on_loss != OnLoss::kContinue || stopping_ != Stopping::kNo || interrupted_ || !all_run) return;
  if (next_ranks() <= static_cast<int64_t>(slots_.size())) return;
  stopping_ = Stopping::kDrains;
  commands.emplace_back(StopAttempt{attempt_, true});
}

void Attempts::on(const SlotGone& gone, Commands&) { take_away(gone.slot); }

void Attempts::on(const Begun&, Commands& commands) {
  if (attempt_ < 0) start(commands);
}

void Attempts::on(const ProcessEnded& ended, Commands& commands) {
  if (ended.attempt != attempt_ || running_.erase(ended.slot) == 0) return;
  all_done_ = all_done_ && ended.how == Ending::kDone;
  switch (ended.how) {
    case Ending::kDone:
      break;
    case Ending::kLost:
      lose(ended.slot, commands);
      break;
    case Ending::kFailed:
      // What a process says while it is being killed, or its peers are, is no error of its own.
      failed_ = failed_ || stopping_ != Stopping::kKilled;
      kill(commands);
      break;
    case Ending::kFollowed:
      // Unless it was asked to end, it misses a rank, and nobody may ever say which.
      if (stopping_ == Stopping::kNo && !interrupted_) lose(std::nullopt, commands);
      break;
  }
  if (running_.empty()) all_ended(commands);
}

void Attempts::on(const LossAnnounced& announced, Commands& commands) {
  if (announced.attempt != attempt_ || running_.empty()) return;
  // The place of a process that is done is as good as it was.
  const bool known = announced.slot && running_.count(*announced.slot) == 1;
  if (known && stopping_ != Stopping::kKilled && rules_.on_loss == OnLoss::kRestart) silent_ = announced.slot;
  lose(known ? announced.slot : std::nullopt, commands);
}

void Attempts::on(const StateKept& kept, Commands&) {
  if (kept.minibatch > newest_) {
    kept_newer_ = true;
    fruitless_ = 0;
  }
  newest_ = kept.minibatch;
}

void Attempts::on(const Interrupted&, Commands& commands) {
  interrupted_ = true;
  if (attempt_ < 0) end(Outcome::kInterrupted, "", commands);
}

bool Attempts::is_there(Slot slot) const {
  return std::find(there_.begin(), there_.end(), slot) != there_.end();
}

void Attempts::take_away(Slot slot) { std::erase(there_, slot); }

int64_t Attempts::next_ranks() const { return std::min(rules_.ranks, static_cast<int64_t>(there_.size())); }

std::vector<Slot> Attempts::next_slots() const {
  std::vector<Slot> spares;
  for (const Slot slot : there_)
    if (std::find(slots_.begin(), slots_.end(), slot) == slots_.end()) spares.push_back(slot);
  // Who stays keeps its rank; spares take the ranks that are free, then those behind the last.
  std::vector<Slot> slots;
  auto spare = spares.begin();
  for (const Slot slot : slots_) {
    if (is_there(slot) && !(slot == silent_ && static_cast<int64_t>(there_.size()) > rules_.ranks)) {
      slots.push_back(slot);
    } else if (spare != spares.end()) {
      slots.push_back(*spare++);
    }
  }
  slots.insert(slots.end(), spare, spares.end());
  slots.resize(static_cast<size_t>(next_ranks()));
  return slots;
}

void Attempts::lose(std::optional<Slot> slot, Commands& commands) {
  if (stopping_ == Stopping::kKilled) return;
  lost_ = true;
  if (slot && rules_.on_loss == OnLoss::kContinue) take_away(*slot);
  kill(commands);
}

void Attempts::kill(Commands& commands) {
  if (rules_.on_loss == OnLoss::kEnd || stopping_ == Stopping::kKilled || running_.empty()) return;
  stopping_ = Stopping::kKilled;
  commands.emplace_back(StopAttempt{attempt_, false});
}

void Attempts::all_ended(Commands& commands) {
  if (failed_) return end(Outcome::kFailed, "", commands);
  if (all_done_) return end(Outcome::kDone, "", commands);
  if (interrupted_) return end(Outcome::kInterrupted, "", commands);
  if (rules_.on_loss == OnLoss::kEnd) return end(Outcome::kLost, "", commands);
  if (lost_ && !kept_newer_ && ++fruitless_ >= rules_.most_fruitless)
    return end(Outcome::kLost, lost_in_vain(fruitless_), commands);
  start(commands);
}

void Attempts::start(Commands& commands) {
  const int64_t least = rules_.on_loss == OnLoss::kContinue ? rules_.fewest : rules_.ranks;
  if (next_ranks() < least) {
    const std::string where = attempt_ < 0 ? " there, " : " left, ";
    return end(Outcome::kLost, places_are(next_ranks()) + where + needed(least), commands);
  }
  slots_ = next_slots();
  silent_.reset();
  running_ = {slots_.begin(), slots_.end()};
  stopping_ = Stopping::kNo;
  lost_ = failed_ = kept_newer_ = false;
  all_done_ = true;
  commands.emplace_back(StartAttempt{++attempt_, slots_});
}

void Attempts::end(Outcome outcome, std::string reason, Commands& commands) {
  ended_ = true;
  commands.emplace_back(EndJob{outcome, std::move(reason)});
}

}  // namespace pipewright
