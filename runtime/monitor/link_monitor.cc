#include "runtime/monitor/link_monitor.h"

#include <algorithm>
#include <utility>

namespace pipewright {
namespace {

// Of kFirst messages the quickest but two: noise can make a message late, and hardly one early.
constexpr size_t kLeftOut = 2;

}  // namespace

std::optional<SpeedChange> LinkMonitor::took(int64_t minibatch, const MessageTimes& times) {
  Bounds message{minibatch, 0, std::max(0.0, times.got_seconds - times.sent_seconds)};
  message.least_seconds = std::clamp(times.got_seconds - std::max(times.sent_seconds, times.asked_seconds),
                                     0.0, message.most_seconds);
  if (learned_) {
    // A link that is not as slow as it was is taken to be as fast as when it was quiet.
    const double level = level_.level_seconds();
    return add(message, message.most_seconds < level ? std::min(level, level_.baseline_seconds()) : level);
  }
  first_.push_back(message);
  if (first_.size() == kFirst) learn();
  return std::nullopt;
}

void LinkMonitor::learn() {
  std::vector<double> most;
  for (const Bounds& message : first_) most.push_back(message.most_seconds);
  const auto quickest = most.begin() + kLeftOut;
  std::nth_element(most.begin(), quickest, most.end());
  for (const Bounds& message : std::exchange(first_, {})) add(message, *quickest);
  learned_ = level_.knows_level();  // else from the next ones
}

std::optional<SpeedChange> LinkMonitor::add(const Bounds& message, double expected_seconds) {
  auto change = level_.add(std::clamp(expected_seconds, message.least_seconds, message.most_seconds),
                           message.minibatch, message.minibatch);
  if (!change) return std::nullopt;
  if (level_.slowdown() < kSlow) change->slowdown = 1;
  const double before = std::exchange(slowdown_, change->slowdown);
  if (before == 1 && slowdown_ == 1) return std::nullopt;
  return change;
}

}  // namespace pipewright
