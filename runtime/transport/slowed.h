// Links that are slow on purpose: messages are held back before another transport has them.
#pragma once

#include <functional>
#include <memory>

#include "runtime/transport/transport.h"

namespace pipewright {

/// Asked on the thread that sends, for each tensor: seconds that it occupies the link to `peer` beyond what
/// the transport takes, >= 0.
using MessageDelay = std::function<double(int64_t peer)>;

/// Of tensors of the host. A message begins to occupy its link when all before it to the same peer have left
/// it, and goes to `inner` when its time is over; a thread does that, whoever sent it goes on.
std::unique_ptr<Transport> make_slowed_transport(std::unique_ptr<Transport> inner, MessageDelay delay);

}  // namespace pipewright
