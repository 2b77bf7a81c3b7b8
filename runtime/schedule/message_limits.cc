#include "runtime/schedule/message_limits.h"

#include <algorithm>

namespace pipewright {

int64_t untaken_gradients(const PipelineShape& shape, int64_t stage) {
  const auto depth = [&](int64_t s) { return shape.trains(s) ? shape.in_flight[static_cast<size_t>(s)] : 1; };
  // Such waits close no circle (order.h). Of orders that are listed no argument says so: there is room
  // for all that the receiver can have in flight.
  const bool listed = shape.v_shaped || !shape.order.empty();
  return 1 + (listed && stage > 0 ? std::max(depth(stage), depth(stage - 1)) : depth(stage));
}

}  // namespace pipewright
