// What two replicas that meet write to each other.
#pragma once

#include <array>
#include <vector>

#include "runtime/transport/transport.h"

namespace pipewright {

/// The active replica asks, or says that it does not any more in this span; the passive one answers.
using MeetingHead = std::array<int64_t, 2>;
constexpr MeetingHead kNoMoreMeetings = {0, 0};
constexpr MeetingHead kAsksToMeet = {1, 0};

/// Sends a head to a peer, with weights behind it. Wait for all requests.
std::vector<std::unique_ptr<Request>> send_meeting(Transport& transport, int64_t peer, int64_t tag,
                                                   const MeetingHead& head,
                                                   const std::vector<at::Tensor>& weights = {});
/// Waits for a head.
MeetingHead receive_meeting(Transport& transport, int64_t peer, int64_t tag);
/// Then for weights like these.
std::vector<at::Tensor> receive_weights(Transport& transport, int64_t peer, int64_t tag,
                                        const std::vector<at::Tensor>& like);

int64_t bytes_of(const std::vector<at::Tensor>& tensors);
/// Of two replicas' weights.
std::vector<at::Tensor> mean_of(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);
/// weights + (met - published).
std::vector<at::Tensor> with_change(const std::vector<at::Tensor>& weights,
                                    const std::vector<at::Tensor>& published,
                                    const std::vector<at::Tensor>& met);

}  // namespace pipewright
