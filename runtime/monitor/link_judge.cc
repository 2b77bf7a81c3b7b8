#include "runtime/monitor/link_judge.h"

#include <algorithm>
#include <utility>

namespace pipewright {
namespace {

// Ends whose other end may never be told are forgotten, the oldest first.
constexpr size_t kMostWaiting = 1 << 14;

// Messages in each direction from which the difference of two clocks is taken.
constexpr int64_t kForClocks = 20;

// A slow rank explains a link that is so many times as slow as it is.
constexpr double kExplained = 1.5;

}  // namespace

std::vector<LinkChange> LinkJudge::take(int64_t rank, const MessageLog& log) {
  std::vector<LinkChange> changes;
  for (const MessageEnd& end : log.ends) {
    const std::tuple message(log.generation, end.minibatch, end.is_gradient, end.sender_stage);
    const End mine{rank, log.clock, end.began_seconds, end.ended_seconds};
    const auto [at, is_first] = waiting_.try_emplace(message, end.is_sender, mine);
    if (is_first) {
      if (waiting_.size() > kMostWaiting) waiting_.erase(waiting_.begin());
      continue;
    }
    const auto [is_sender, other] = at->second;
    waiting_.erase(at);
    if (is_sender == end.is_sender) continue;  // the same end twice: a rank that trains it again
    const auto change =
        end.is_sender ? take(log.generation, end, mine, other) : take(log.generation, end, other, mine);
    if (change) changes.push_back(*change);
  }
  return changes;
}

std::optional<LinkChange> LinkJudge::take(int64_t generation, const MessageEnd& message, const End& sender,
                                          const End& receiver) {
  const Ranks ranks(sender.rank, receiver.rank);
  const bool same_clock = sender.clock == receiver.clock;
  const std::optional<double> ahead = same_clock ? 0 : clock_ahead(sender, receiver);
  if (!ahead) return std::nullopt;
  Link& link = links_[ranks];
  const std::tuple stream(message.is_gradient, message.sender_stage);
  if (!link.monitor) {
    link.monitor.emplace(settings_, same_clock ? kGrainSeconds : kGrainBetweenHostsSeconds);
    link.generation = generation;
    link.stream = stream;
  }
  if (generation < link.generation) return std::nullopt;
  if (generation > link.generation) {
    link.monitor->plan_changed();
    link.generation = generation;
    link.stream = stream;
  }
  if (stream != link.stream) return std::nullopt;
  const auto change = link.monitor->took(
      message.minibatch, {sender.began_seconds + *ahead, receiver.began_seconds, receiver.ended_seconds});
  if (!change) return std::nullopt;
  const bool was_explained = std::exchange(link.explained, is_explained(ranks, *change));
  const bool ends = change->slowdown == 1;
  if (link.explained || (was_explained && ends)) return std::nullopt;
  return LinkChange{ranks.first, ranks.second, *change};
}

/// By how much the receiver's clock is ahead of the sender's; nothing while it is not known.
std::optional<double> LinkJudge::clock_ahead(const End& sender, const End& receiver) {
  Quickest& there = quickest_[{sender.rank, receiver.rank}];
  const Quickest& back = quickest_[{receiver.rank, sender.rank}];
  if (there.messages >= kForClocks && back.messages >= kForClocks) return (there.seconds - back.seconds) / 2;
  if (there.messages >= kForClocks) return std::nullopt;
  const double seconds = receiver.ended_seconds - sender.began_seconds;
  there.seconds = there.messages == 0 ? seconds : std::min(there.seconds, seconds);
  ++there.messages;
  return std::nullopt;
}

bool LinkJudge::is_explained(Ranks ranks, const SpeedChange& change) const {
  if (change.slowdown == 1) return false;
  const double slowest = std::max(slowdown_(ranks.first), slowdown_(ranks.second));
  return slowest >= settings_.least && change.slowdown <= kExplained * slowest;
}

}  // namespace pipewright
