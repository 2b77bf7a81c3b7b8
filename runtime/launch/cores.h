// The cores of this host that the ranks of a job share.
#pragma once

#include <cstdint>
#include <vector>

namespace pipewright {

/// "I/N": this is rank I of the N ranks on its host, which may take a core each.
inline constexpr const char* kPinVariable = "PIPEWRIGHT_PIN";

/// That this process may run on, by number.
std::vector<int> usable_cores();

/// Cores that the processes of this job may use on this host: all of them, also for a rank that is bound to
/// one.
int64_t host_cores();

/// Binds this process to the cores that the launcher chose for it, if one did. Called before any thread
/// starts.
void take_cores_from_launcher();

}  // namespace pipewright
