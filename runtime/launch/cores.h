// The cores of this host that the ranks of a job share.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/data_workers.h"
#include "runtime/launch/place.h"

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

/// Those of a rank: `wanted`, or by the cores that are left (data_workers()) by the ranks of this host, which
/// compute with `computing` threads each; where nothing says how many there are, by as many as there are in
/// the world. The workers of a rank that take_cores_from_launcher() has bound run on its share of the cores
/// that no rank is bound to, if there are some.
DataWorkers data_workers_of(int64_t wanted, int64_t computing, const Place& place);

}  // namespace pipewright
