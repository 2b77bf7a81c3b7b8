#include "runtime/control/progress.h"

#include <pthread.h>

#include <algorithm>

#include "graph/error.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/split_messages.h"

namespace pipewright {
namespace {

constexpr size_t kEvents = 200;

// A main thread that waits for messages looks around now and then: that is less than this part of a
// CPU.
constexpr double kIdleShare = 0.02;

// An operation that uses the CPU all the time may still be caught in a loop. It has so many times as
// long.
constexpr double kBusyPatience = 10;

double seconds(Progress::Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Activity activity_of(const Action& action, const Plan& plan, const PipelineShape& shape, int64_t rank) {
  Activity activity;
  const int64_t stage = action.stage == Action::kOnlyStage ? first_stage_of(plan, rank) : action.stage;
  activity.operation = std::string(words_of(action.kind).name) +
                       (is_of_round(action.kind) ? " of round " : " of minibatch ") +
                       std::to_string(action.index);
  if (!is_of_round(action.kind)) activity.minibatch = action.index;
  if (action.stage != Action::kOnlyStage) activity.operation += " at stage " + std::to_string(stage);
  const auto neighbour = [&](int64_t other) {
    PW_CHECK(0 <= other && other < shape.stages(), to_text(action) << " at stage " << stage);
    if (!shape.splits(other)) {
      activity.peers = {rank_of_minibatch(plan, shape, other, action.index)};
      return;
    }
    const auto& ranks = plan.stages[static_cast<size_t>(stage)].ranks;
    const int64_t place = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    const ReplicaRange met = parts_met(shape, stage, place, other);
    for (int64_t q = met.first; q < met.first + met.count; ++q)
      activity.peers.push_back(rank_of(plan, other, q));
  };
  switch (action.kind) {
    case ActionKind::kReceiveActivation:
    case ActionKind::kSendGradient:
      neighbour(stage - 1);
      break;
    case ActionKind::kReceiveGradient:
    case ActionKind::kSendActivation:
      neighbour(stage + 1);
      break;
    case ActionKind::kReduce:
    case ActionKind::kAverage:
      for (const int64_t other : plan.stages[static_cast<size_t>(stage)].ranks) {
        if (other != rank) activity.peers.push_back(other);
      }
      break;
    default:
      break;
  }
  return activity;
}

Progress::Progress() {
  pthread_getcpuclockid(pthread_self(), &thread_clock_);
  cpu_at_look_seconds_ = cpu_seconds();
}

double Progress::cpu_seconds() const {
  timespec time = {};
  clock_gettime(thread_clock_, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void Progress::begin(Activity activity) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (!activity_.operation.empty()) {
    events_.push_back({seconds(since_ - made_), seconds(now - since_), std::move(activity_.operation)});
    if (events_.size() > kEvents) events_.pop_front();
    if (!activity_.peers.empty()) waited_seconds_ += seconds(now - since_);
  }
  if (activity.minibatch >= 0) minibatch_ = activity.minibatch;
  activity_ = std::move(activity);
  ++begun_;
  since_ = now;
}

ProgressNow Progress::now() {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const double used = cpu_seconds();
  if (used - cpu_at_look_seconds_ > kIdleShare * seconds(now - looked_)) alive_ = now;
  looked_ = now;
  cpu_at_look_seconds_ = used;
  ProgressNow result{activity_, seconds(now - since_), 0, begun_, minibatch_, waited_seconds_};
  if (!activity_.peers.empty()) result.waited_seconds += result.seconds;
  if (!activity_.operation.empty() && activity_.peers.empty() && !activity_.done) {
    result.stalled_seconds =
        std::max(seconds(now - std::max(since_, alive_)), result.seconds / kBusyPatience);
  }
  return result;
}

std::vector<Progress::Event> Progress::events() const {
  const std::lock_guard lock(mutex_);
  return {events_.begin(), events_.end()};
}

}  // namespace pipewright
