// Which minibatches each pipeline of the reference trains where they were handed out, not taken in turn.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/groups/group_log.h"
#include "runtime/schedule/shape.h"

namespace pipewright {

using HandedOut = std::vector<std::vector<int64_t>>;  ///< by pipeline: minibatches of the run

/// What of the span each pipeline got, as `parts` says. InputError unless each minibatch of it is one's.
HandedOut handed_out_in(Span span, const PartsBySpan& parts, size_t pipelines);

}  // namespace pipewright
