// The sum of tensors over the replicas of a stage, in a fixed order.
#pragma once

#include <vector>

#include "runtime/transport/transport.h"

namespace pipewright {

/// Replaces `flat` (one-dimensional, contiguous, equal size and dtype on all) by the sum over `ranks`, added
/// in the order of `ranks`: ((x0 + x1) + x2) + ... element by element, so that a serial program can repeat it
/// bit for bit on any transport. All ranks of the list call it, in the same order of calls. `flat` must not
/// be touched until it returns.
///
/// A transport may have a sum of its own (NCCL, for tensors of a GPU): it is taken, and then the order is the
/// transport's.
///
/// Direct reduce-scatter and all-gather: replica q sums part q of the tensor and sends it to all. Each rank
/// sends and receives 2(r-1)/r of the tensor in two rounds, as a ring would in 2(r-1). Uses tags first_tag
/// and first_tag + 1. Returns the bytes this rank sent.
int64_t all_reduce_sum(Transport& transport, const std::vector<int64_t>& ranks, int64_t first_tag,
                       const at::Tensor& flat);

}  // namespace pipewright
