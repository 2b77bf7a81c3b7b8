// How many messages of a rank may be on their way.
#pragma once

#include <cstdint>

#include "runtime/schedule/shape.h"

namespace pipewright {

/// How many gradients of a rank of the stage may be sent and not known to be taken, before one more waits: as
/// many as the worker lets be, and as a plan's memory has room for.
int64_t untaken_gradients(const PipelineShape& shape, int64_t stage);

}  // namespace pipewright
