#include "runtime/control/watchdog.h"

#include <algorithm>

#include "graph/file_watch.h"

namespace pipewright {

using Clock = std::chrono::steady_clock;

namespace {

std::string named(int64_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

NeighbourWatch::NeighbourWatch(int64_t rank, int64_t world_size)
    : watched_((rank + 1) % world_size), world_size_(world_size) {}

std::optional<Failure> NeighbourWatch::look(Board board, std::chrono::milliseconds timeout) {
  const RankReport report = board.report_of(watched_);
  if (!report.beat || report.beat->finished) return std::nullopt;
  const auto lost = [&](const std::string& what) {
    return Failure{watched_, ExitCode::kPeerLost,
                   joined({named(watched_) + what + ": " + state_words(report), last_heard_of(report),
                           who_waits_for(board.reports_of_all(world_size_), watched_)}),
                   "", watched_};
  };
  if (report.state == ProcessState::kGone) {
    if (const auto said = board.failure()) return said;
    return lost("");
  }
  if (report.beat->number != beat_) {
    beat_ = report.beat->number;
    since_ = Clock::now();
  } else if (Clock::now() - since_ > timeout) {
    return lost(" has not been heard of for " + seconds_words(timeout));
  }
  return std::nullopt;
}

std::optional<Failure> not_getting_on(Board board, int64_t rank, int64_t world_size, const ProgressNow& now,
                                      std::chrono::milliseconds timeout) {
  const double timeout_seconds = std::chrono::duration<double>(timeout).count();
  if (now.stalled_seconds > timeout_seconds) {
    return Failure{rank, ExitCode::kPeerLost,
                   joined({named(rank) + " does not get on: " + now.activity.operation + " since " +
                               seconds_words(now.seconds) + file_waited_for(),
                           who_waits_for(board.reports_of_all(world_size), rank)}),
                   "", rank};
  }
  if (now.activity.peers.empty() || now.seconds <= timeout_seconds) return std::nullopt;
  // It waits, which is right as long as somebody at the end of the chain works.
  const auto reports = board.reports_of_all(world_size);
  const auto chain = waiting_chain(reports, rank);
  const auto& last = reports[static_cast<size_t>(chain.back())];
  const bool circle = std::find(chain.begin(), chain.end() - 1, chain.back()) != chain.end() - 1;
  const bool all_long = std::all_of(chain.begin(), chain.end() - (circle ? 0 : 1), [&](int64_t waiting) {
    const auto& beat = reports[static_cast<size_t>(waiting)].beat;
    return beat && beat->progress.seconds > timeout_seconds;
  });
  if (!all_long) return std::nullopt;
  if (circle) {
    return Failure{chain.back(), ExitCode::kPeerLost,
                   "ranks wait for each other: " + chain_words(reports, chain)};
  }
  if (last.beat && (last.beat->finished || last.beat->progress.activity.done)) {
    return Failure{rank, ExitCode::kPeerLost,
                   joined({named(chain.back()) + " has finished, but a message of it is missing",
                           who_waits_for(reports, chain.back())})};
  }
  return std::nullopt;
}

}  // namespace pipewright
