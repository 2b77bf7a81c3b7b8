#include "runtime/control/coordination.h"

#include <chrono>
#include <utility>
#include <vector>

namespace pipewright {

Coordination::Coordination(Settings settings)
    : settings_(std::move(settings)), coordinator_(settings_.rules) {}

void Coordination::happen(CoordinatorEvent event) {
  std::unique_lock lock(mutex_);
  events_.push_back(std::move(event));
  if (std::exchange(at_work_, true)) return;
  try {
    while (!events_.empty()) {
      const std::vector<CoordinatorCommand> commands = coordinator_.take(events_.front());
      events_.pop_front();
      lock.unlock();
      for (const CoordinatorCommand& command : commands) carry_out(command);
      lock.lock();
    }
  } catch (...) {
    if (!lock) lock.lock();
    at_work_ = false;
    throw;
  }
  at_work_ = false;
}

void Coordination::carry_out(const CoordinatorCommand& command) {
  if (const auto* tell = std::get_if<Tell>(&command)) {
    settings_.tell(tell->first_rank, tell->end_rank, tell->order);
  } else if (const auto* place = std::get_if<PlaceStop>(&command)) {
    happen(StopPlaced{place->round, settings_.stop_behind(place->last_begun)});
  } else {
    const std::lock_guard lock(mutex_);
    due_ = false;
    if (const auto* ask = std::get_if<AskPolicy>(&command)) ask_ = *ask;
    changed_.notify_all();
  }
}

std::optional<AskPolicy> Coordination::await_decision(DecisionDue due, const std::function<void()>& check) {
  {
    const std::lock_guard lock(mutex_);
    due_ = true;
  }
  happen(due);
  std::unique_lock lock(mutex_);
  while (due_) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    lock.unlock();
    check();
    lock.lock();
  }
  return std::exchange(ask_, {});
}

void Coordination::decided(int64_t minibatch, std::string change) {
  happen(PolicyAnswered{minibatch, std::move(change)});
}

bool Coordination::waits() const {
  const std::lock_guard lock(mutex_);
  return due_;
}

}  // namespace pipewright
