// Lines of all ranks on their way to rank 0, over the job's store.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/transport/store.h"

namespace pipewright {

/// post(), set_sink() and hand_over() from any thread; the others from one thread, whose store it is.
class LineRelay {
 public:
  using Sink = std::function<void(int64_t rank, const std::string& line)>;

  LineRelay(int64_t rank, int64_t world_size);
  /// Rank 0: gets every line of every rank, each rank's in order.
  void set_sink(Sink sink);
  /// Does not block: the line goes with the next deliver().
  void post(std::string line);
  /// Gives the sink what `rank` says: one or more lines.
  void hand_over(int64_t rank, const std::string& lines);

  /// Sends what has been posted; on rank 0 the sink gets it.
  void deliver(Store& store);
  /// This rank's last word: nothing may be delivered after it.
  void finish(Store& store);
  /// Rank 0: the sink gets what the others have delivered. True: all ranks, and this one, have finished.
  bool collect(Store& store);

 private:
  const int64_t rank_;
  const int64_t world_size_;
  std::mutex mutex_;
  Sink sink_;                       // protected by mutex_
  std::vector<std::string> lines_;  // posted, not delivered; protected by mutex_

  int64_t delivered_ = 0;
  int64_t deliveries_seen_ = -1;
  std::vector<int64_t> collected_;  // by rank: how many deliveries have been taken in
  std::vector<bool> finished_;      // by rank
};

}  // namespace pipewright
