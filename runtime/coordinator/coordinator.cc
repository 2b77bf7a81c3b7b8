#include "runtime/coordinator/coordinator.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace pipewright {
namespace {

bool all(const std::vector<bool>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](bool said) { return said; });
}

}  // namespace

std::vector<CoordinatorCommand> Coordinator::take(const CoordinatorEvent& event) {
  Commands commands;
  std::visit([&](const auto& what) { on(what, commands); }, event);
  return commands;
}

void Coordinator::on(const Heard& event, Commands& commands) {
  if (event.rank < 0 || event.rank >= rules_.ranks) return;
  std::visit([&](const auto& said) { hear(event.rank, said, commands); }, event.message);
}

void Coordinator::on(const ChangeProposed& event, Commands& commands) {
  if (proposed_) return;
  proposed_ = event.change;
  open_round(commands);
}

void Coordinator::hear(int64_t, const SignalHeard& said, Commands& commands) {
  if (!rules_.heeds_signals || signal_ != 0) return;
  signal_ = said.signal;
  open_round(commands);
}

void Coordinator::open_round(Commands& commands) {
  if (phase_ != Phase::kNone || (signal_ == 0 && !proposed_)) return;
  phase_ = Phase::kAsked;
  ++round_;
  of_round_ = signal_;
  said_.assign(static_cast<size_t>(rules_.ranks), false);
  last_begun_ = std::numeric_limits<int64_t>::min();
  tell_all(BeginNoMore{round_, of_round_}, commands);
}

void Coordinator::hear(int64_t rank, const BegunUpTo& said, Commands& commands) {
  if (phase_ != Phase::kAsked || said.round != round_) return;
  said_[static_cast<size_t>(rank)] = true;
  last_begun_ = std::max(last_begun_, said.minibatch);
  if (!all(said_)) return;
  phase_ = Phase::kPlacing;
  place_stop(commands);
}

// While the policy is being asked nobody knows under which plan the next minibatches are trained.
void Coordinator::place_stop(Commands& commands) {
  if (phase_ != Phase::kPlacing || asked_policy_) return;
  commands.push_back(PlaceStop{round_, last_begun_});
  if (of_round_ == 0) return;
  ends_ = true;
  ask_policy(commands);
}

void Coordinator::on(const StopPlaced& event, Commands& commands) {
  if (phase_ != Phase::kPlacing || event.round != round_) return;
  phase_ = Phase::kKnown;
  said_.assign(said_.size(), false);
  made_.assign(said_.size(), false);
  const std::string change = of_round_ == 0 ? *std::exchange(proposed_, {}) : "";
  tell_all(StopBefore{round_, event.minibatch, change}, commands);
}

void Coordinator::hear(int64_t rank, const StopKnown& said, Commands& commands) {
  if (phase_ != Phase::kKnown || said.round != round_) return;
  said_[static_cast<size_t>(rank)] = true;
  if (!all(said_)) return;
  phase_ = Phase::kOpen;
  tell_all(BeginAgain{round_}, commands);
  end_round(commands);
}

void Coordinator::hear(int64_t rank, const ChangeMade& said, Commands& commands) {
  if ((phase_ != Phase::kKnown && phase_ != Phase::kOpen) || said.round != round_) return;
  made_[static_cast<size_t>(rank)] = true;
  end_round(commands);
}

void Coordinator::end_round(Commands& commands) {
  if (phase_ != Phase::kOpen || of_round_ != 0 || !all(made_)) return;
  phase_ = Phase::kNone;
  open_round(commands);
}

void Coordinator::on(const DecisionDue& event, Commands& commands) {
  if (due_ || event.minibatch <= decided_up_to_) return;
  due_ = event;
  ask_policy(commands);
}

void Coordinator::hear(int64_t rank, const GradientNorms& said, Commands& commands) {
  if (said.minibatch <= decided_up_to_) return;
  norms_[said.minibatch].emplace(rank, said);
  ask_policy(commands);
}

void Coordinator::ask_policy(Commands& commands) {
  if (!due_ || asked_policy_) return;
  if (ends_) {
    commands.push_back(DecideNothing{due_->minibatch});
    return conclude("", commands);
  }
  AskPolicy ask{due_->minibatch, {}};
  if (due_->wants_norms) {
    const auto& told = norms_[due_->minibatch];
    for (int64_t rank = 0; rank < due_->ranks; ++rank) {
      const auto of_rank = told.find(rank);
      if (of_rank == told.end()) return;
      ask.norms.push_back(of_rank->second);
    }
  }
  asked_policy_ = true;
  commands.push_back(std::move(ask));
}

void Coordinator::on(const PolicyAnswered& event, Commands& commands) {
  if (!asked_policy_ || event.minibatch != due_->minibatch) return;
  asked_policy_ = false;
  // The plan changes there, where some ranks are already: they stop behind that, as if the minibatch had
  // begun.
  if (!event.change.empty()) last_begun_ = std::max(last_begun_, event.minibatch);
  conclude(event.change, commands);
  place_stop(commands);
}

// A rank without a part in the plan that was in force hears of the next one. Rank 0 knows.
void Coordinator::conclude(const std::string& change, Commands& commands) {
  const int64_t end = change.empty() ? due_->ranks : rules_.ranks;
  if (end > 1) commands.push_back(Tell{1, end, DrainDecided{due_->minibatch, change}});
  decided_up_to_ = due_->minibatch;
  due_.reset();
  norms_.erase(norms_.begin(), norms_.upper_bound(decided_up_to_));
}

void Coordinator::on(const GenerationOver& event, Commands& commands) {
  if (event.how.generation <= ended_generations_) return;
  ended_generations_ = event.how.generation;
  if (event.ranks < rules_.ranks) commands.push_back(Tell{event.ranks, rules_.ranks, event.how});
}

void Coordinator::tell_all(Order order, Commands& commands) const {
  commands.push_back(Tell{0, rules_.ranks, std::move(order)});
}

int64_t place_within_plan(int64_t generation, int64_t last_begun,
                          const std::function<int64_t(int64_t generation, int64_t last_begun)>& place,
                          const std::function<std::optional<int64_t>(int64_t generation)>& end_of) {
  for (;; ++generation) {
    const int64_t stop = place(generation, last_begun);
    const std::optional<int64_t> end = end_of(generation);
    if (!end || stop < *end) return stop;
    last_begun = *end - 1;  // of what follows nothing has been begun
  }
}

}  // namespace pipewright
