#include "runtime/coordinator/follower.h"

#include <algorithm>
#include <utility>

#include "graph/error.h"

namespace pipewright {

std::vector<AgreementMessage> Follower::take(const Order& order) {
  return std::visit([this](const auto& what) { return on(what); }, order);
}

std::vector<AgreementMessage> Follower::take_signal(int signal) {
  if (signal == 0 || std::exchange(heard_signal_, signal) != 0) return {};
  return {SignalHeard{signal}};
}

bool Follower::begin(int64_t minibatch) {
  if (waits()) return false;
  if (minibatch < stop_before_) last_begun_ = std::max(last_begun_, minibatch);
  return true;
}

std::vector<AgreementMessage> Follower::on(const BeginNoMore& order) {
  if (phase_ != Phase::kNone || order.round <= round_) return {};
  phase_ = Phase::kAsked;
  round_ = order.round;
  signal_ = order.signal;
  return {BegunUpTo{round_, last_begun_}};
}

std::vector<AgreementMessage> Follower::on(const StopBefore& order) {
  if (phase_ != Phase::kAsked || order.round != round_) return {};
  phase_ = Phase::kKnown;
  stop_before_ = order.minibatch;
  change_ = order.change;
  return {StopKnown{round_}};
}

std::vector<AgreementMessage> Follower::on(const BeginAgain& order) {
  if (phase_ == Phase::kKnown && order.round == round_)
    phase_ = std::exchange(made_, false) ? Phase::kNone : Phase::kOpen;
  return {};
}

// It may come before BeginAgain, from a rank that has begun all of its own before the stop already. It begins
// nothing of the next plan before the others know.
std::vector<AgreementMessage> Follower::made_change() {
  PW_CHECK(stop_before_ != kNever && signal_ == 0, "nothing has been changed");
  if (phase_ == Phase::kKnown) {
    made_ = true;
  } else {
    phase_ = Phase::kNone;
  }
  proposed_ = false;
  stop_before_ = kNever;
  change_.clear();
  return {ChangeMade{round_}};
}

std::vector<AgreementMessage> Follower::on(const DrainDecided& order) {
  if (order.minibatch > decided_up_to_) {
    decided_up_to_ = order.minibatch;
    at_drain_.emplace_back(order);
  }
  return {};
}

std::vector<AgreementMessage> Follower::on(const GenerationEnded& order) {
  if (order.generation > ended_generations_) {
    ended_generations_ = order.generation;
    at_drain_.emplace_back(order);
  }
  return {};
}

std::optional<Follower::AtDrain> Follower::next_at_drain() {
  if (at_drain_.empty()) return std::nullopt;
  AtDrain next = std::move(at_drain_.front());
  at_drain_.pop_front();
  return next;
}

}  // namespace pipewright
