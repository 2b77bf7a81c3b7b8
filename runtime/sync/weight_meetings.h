// A replica's part in meetings (runtime/side_by_side/meetings.h), on threads beside training.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/side_by_side/meetings.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// Holds what the replica has published of its weights, w0, and what meetings have made of it, w: each sets w
/// of both to their mean. When the replica asks, w - w0 comes to its weights, and these are published. So at
/// any time the sum of w over all replicas changes by what updates change, and by nothing else.
///
/// Weights are flat tensors of the host (flatten()), not changed any more. Calls come from one thread;
/// PeerError from all if a meeting has failed.
class WeightMeetings {
 public:
  virtual ~WeightMeetings() = default;
  /// A span begins, with these weights on all replicas.
  virtual void begin(std::vector<at::Tensor> weights, int64_t span) = 0;
  /// The replica has made so many updates of the span, which have left these weights: what they become, if
  /// meetings have changed them. Waits for nobody.
  virtual std::optional<std::vector<at::Tensor>> update(std::vector<at::Tensor> weights, int64_t updates) = 0;
  /// Likewise where it makes no more. Every replica has begun the span or will, without waiting for this one:
  /// then waits until nobody asks any more. The next span can begin.
  virtual std::optional<std::vector<at::Tensor>> end(std::vector<at::Tensor> weights, int64_t updates) = 0;
  /// By this rank, since the last call.
  virtual int64_t take_sent_bytes() = 0;
};

struct WeightMeetingSettings {
  std::vector<int64_t> ranks;  ///< of the stage's replicas
  int64_t tag = 0;             ///< and the next one
  int64_t replica = 0;
  MeetingPartners partners;
  /// Of an active replica: a meeting has come to its weights. From the thread of the calls.
  std::function<void(const WeightMeeting&)> told;
};
/// Of an active replica and of a passive one. Borrow the transport, which is aborted if the object goes
/// within a span (its rank fails).
std::unique_ptr<WeightMeetings> make_active_meetings(Transport& transport, WeightMeetingSettings settings);
std::unique_ptr<WeightMeetings> make_passive_meetings(Transport& transport, WeightMeetingSettings settings);

}  // namespace pipewright
