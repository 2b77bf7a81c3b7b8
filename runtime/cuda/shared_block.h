// Blocks of a GPU's memory between processes that share it: CUDA's interprocess memory and events.
#pragma once

#include <memory>

#include "runtime/transport/shared_blocks.h"

namespace pipewright {

std::unique_ptr<BlockSharing> share_blocks_of(int64_t device);

}  // namespace pipewright
