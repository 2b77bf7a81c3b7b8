// What ranks tell rank 0, on its way over the job's store.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/messages/rank_message.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// post(), set_sink() and hand_over() from any thread; the others from one thread, whose store it is.
class RankChannel {
 public:
  using Sink = std::function<void(int64_t rank, RankMessage message)>;

  RankChannel(int64_t rank, int64_t world_size);
  /// Rank 0: gets every message of every rank, each rank's in order.
  void set_sink(Sink sink);
  /// Does not block: the message goes with the next deliver().
  void post(RankMessage message);
  /// Gives the sink what `rank` tells; without a sink nobody hears it.
  void hand_over(int64_t rank, RankMessage message);

  /// Sends what has been posted; on rank 0 the sink gets it.
  void deliver(Store& store);
  /// This rank's last word: nothing may be delivered after it.
  void finish(Store& store);
  /// Rank 0: the sink gets what the others have delivered. True: all ranks, and this one, have finished.
  /// InputError for what is no message.
  bool collect(Store& store);

 private:
  const int64_t rank_;
  const int64_t world_size_;
  std::mutex mutex_;
  Sink sink_;                        // protected by mutex_
  std::vector<RankMessage> posted_;  // and not delivered; protected by mutex_

  int64_t delivered_ = 0;
  int64_t deliveries_seen_ = -1;
  std::vector<int64_t> collected_;  // by rank: how many deliveries have been taken in
  std::vector<bool> finished_;      // by rank
};

}  // namespace pipewright
