// How a rank hears with which other pipelines it averages its weights.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/side_by_side/group_patience.h"
#include "runtime/side_by_side/meetings.h"

namespace pipewright {

/// What a GroupScheduler decides, as a rank asks for it. One thread.
class Groups {
 public:
  virtual ~Groups() = default;
  /// `pipeline` will have made an update at `stage` in `ready_in`, by its experience. Does not wait.
  virtual void announce(int64_t stage, int64_t pipeline, std::chrono::nanoseconds ready_in) = 0;
  /// `pipeline` has made an update at `stage`: await() says with whom it averages. Does not wait.
  virtual void ask(int64_t stage, int64_t pipeline, GroupPatience patience) = 0;
  /// After ask(): the pipelines of its group, ascending. Throws what ends the job meanwhile.
  virtual std::vector<int64_t> await(int64_t stage) = 0;
  /// What nobody decided: a meeting at `stage` in the span that begins with the minibatch `span`, by its
  /// active pipeline. Does not wait. It is written down when await_left() returns.
  virtual void tell(int64_t stage, int64_t span, const WeightMeeting& meeting) = 0;
  /// `pipeline` makes no more updates at `stage` in this span. Does not wait.
  virtual void leave(int64_t stage, int64_t pipeline) = 0;
  /// After leave(): returns when all pipelines have left the stage. Who has several stages leaves all of them
  /// first: others may wait at one of them.
  virtual void await_left(int64_t stage) = 0;
};

}  // namespace pipewright
