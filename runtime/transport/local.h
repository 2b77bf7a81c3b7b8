// Ranks as threads of one process: messages are handed over through mailboxes. Deterministic, and quick in
// tests. What is given is taken without a copy; what is sent is copied, and again when it is received. A
// device's tensors stay within its memory, each in the order of its rank's stream: several ranks can so share
// a GPU, and no host waits.
#pragma once

#include <memory>
#include <vector>

#include "runtime/transport/transport.h"

namespace pipewright {

/// One transport per rank of a world that lives in this process. Each is used by its own thread; they keep
/// their common state alive together.
std::vector<std::unique_ptr<Transport>> make_local_world(int64_t world_size);

}  // namespace pipewright
