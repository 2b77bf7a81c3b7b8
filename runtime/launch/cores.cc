#include "runtime/launch/cores.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "graph/error.h"
#include "runtime/control/signals.h"

namespace pipewright {
namespace {

constexpr const char* kCoresVariable = "PIPEWRIGHT_CORES";

// Of a rank that is bound: what it has beside its own core. Of the process, as the binding is.
std::vector<int>* spare_cores = nullptr;

}  // namespace

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
  }
  return cores;
}

int64_t host_cores() {
  if (const char* cores = std::getenv(kCoresVariable)) return std::atoll(cores);
  return static_cast<int64_t>(usable_cores().size());
}

void take_cores_from_launcher() {
  if (const char* launcher = std::getenv(kLauncherVariable)) {
    // When the launcher is killed its ranks end too.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (std::to_string(getppid()) != launcher) std::_Exit(static_cast<int>(ExitCode::kTerminated));
  }
  const auto cores = usable_cores();
  ::setenv(kCoresVariable, std::to_string(cores.size()).c_str(), 1);
  if (const char* pin = std::getenv(kPinVariable)) {
    size_t place = 0, places = 0;
    char slash = 0;
    if (!(std::istringstream(pin) >> place >> slash >> places)) return;
    if (place >= places || places > cores.size()) return;
    static std::vector<int> spare;
    for (size_t i = places + place; i < cores.size(); i += places) spare.push_back(cores[i]);
    spare_cores = &spare;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cores[place], &set);
    sched_setaffinity(0, sizeof set, &set);  // best effort: a rank that is not pinned is only slower
  }
}

DataWorkers data_workers_of(int64_t wanted, int64_t computing, const Place& place) {
  if (!spare_cores)
    return data_workers(wanted, computing, place.local_ranks > 0 ? place.local_ranks : place.world_size);
  const auto spare = static_cast<int64_t>(spare_cores->size());
  return {wanted > 0 ? wanted : default_data_workers(spare, 1, /*computing=*/0), *spare_cores};
}

}  // namespace pipewright
