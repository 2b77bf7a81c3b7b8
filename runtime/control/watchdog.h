// Does the next rank still live, does this rank's main thread get on? Answers are failures with words that
// say who waits for whom. PeerError if the store cannot be reached.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "runtime/control/board.h"

namespace pipewright {

/// Watches the heartbeat and, on one host, the process of the rank after this one.
class NeighbourWatch {
 public:
  NeighbourWatch(int64_t rank, int64_t world_size);
  /// What has become of it, if it has died or not been heard of for `timeout`. If it has itself said why it
  /// goes, that.
  std::optional<Failure> look(Board board, std::chrono::milliseconds timeout);

 private:
  const int64_t watched_;
  const int64_t world_size_;
  int64_t beat_ = -1;  // the last one seen, since when
  std::chrono::steady_clock::time_point since_;
};

/// `now` is what rank `rank` does. A failure if it has not got on for `timeout`, or waits in vain: in a
/// circle, or for a rank that has finished. (The heartbeat comes from another thread: that it goes on says
/// nothing about the main thread.)
std::optional<Failure> not_getting_on(Board board, int64_t rank, int64_t world_size, const ProgressNow& now,
                                      std::chrono::milliseconds timeout);

}  // namespace pipewright
