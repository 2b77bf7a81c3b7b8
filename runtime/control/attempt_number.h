// Which start of its job's ranks a process is part of.
#pragma once

#include <cstdint>

namespace pipewright {

/// The launcher says it to the ranks of every attempt but the first.
inline constexpr const char* kAttemptVariable = "PIPEWRIGHT_ATTEMPT";

/// As the launcher has said; 0: the first attempt, or no launcher of ours.
int64_t attempt_of_process();

}  // namespace pipewright
