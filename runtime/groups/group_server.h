// What pipelines side by side ask of rank 0: with whom they average their weights (GroupScheduler), and what
// they train next (MinibatchQueue); and what they tell it of meetings. One event loop, on a thread of its
// process. Who asks for a group has a parked reply, not a thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "graph/sync_rules.h"
#include "runtime/schedule/shape.h"
#include "runtime/side_by_side/group_scheduler.h"
#include "runtime/side_by_side/meetings.h"

namespace pipewright {

class GroupServer {
 public:
  struct Settings {
    std::string host = "127.0.0.1";  ///< where this host is found (bind_socket)
    std::string secret;              ///< connections that do not begin with it are closed
    PartialReduceRules rules;
    /// On the server's thread, before anyone hears of it: what the plan of this generation decided at a
    /// stage. In the order in which members of more than one group are in them.
    std::function<void(int64_t generation, const GroupDecision& decision)> decided;
    /// Likewise: `part` of the span's minibatches is the pipeline's.
    std::function<void(int64_t generation, const Span& span, int64_t pipeline, const Span& part)> handed_out;
    /// On the server's thread: a rank told of a meeting at a stage in the span that begins with `span`. All
    /// that ranks tell before they leave a stage, before any hears that all have left.
    std::function<void(int64_t generation, int64_t stage, int64_t span, const WeightMeeting& meeting)> met;
    /// Likewise: all have left the stage, and none has heard so.
    std::function<void(int64_t generation, int64_t stage)> left;
  };
  /// Serves until the object dies, on a free port. RunError if there is none.
  explicit GroupServer(Settings settings);
  ~GroupServer();

  int64_t port() const;
  /// No minibatch of the generation is handed out from the one on that `stop_after` makes of the last that
  /// was handed out, or of `last_started` if that comes later; returns it. Any thread.
  int64_t stop_handing_out(int64_t generation, int64_t last_started,
                           const std::function<int64_t(int64_t last)>& stop_after);

  /// Of all generations that were served. Any thread.
  GroupStatistics statistics() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace pipewright
