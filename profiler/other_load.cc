#include "profiler/other_load.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>

#include "interference/core_features.h"

namespace pipewright {
namespace {

std::string text_of(const char* file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

LoadReading read_load() {
  LoadReading reading;
  reading.at_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  timespec own = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  reading.own_seconds = static_cast<double>(own.tv_sec) + 1e-9 * static_cast<double>(own.tv_nsec);
  reading.host = host_activity_of(text_of("/proc/stat"), static_cast<double>(sysconf(_SC_CLK_TCK)));
  return reading;
}

}  // namespace

std::optional<double> other_cores(const LoadReading& first, const LoadReading& second,
                                  const std::vector<int64_t>& cores) {
  const double elapsed = second.at_seconds - first.at_seconds;
  if (elapsed <= 0 || cores.empty()) return std::nullopt;
  double taken = first.own_seconds - second.own_seconds;
  for (const int64_t core : cores) {
    const auto before = first.host.cores.find(core), after = second.host.cores.find(core);
    if (before == first.host.cores.end() || after == second.host.cores.end()) return std::nullopt;
    taken += after->second.busy_seconds - before->second.busy_seconds;
    taken += after->second.stolen_seconds - before->second.stolen_seconds;
  }
  return std::clamp(taken / elapsed, 0.0, static_cast<double>(cores.size()));
}

double waited_for_core_seconds() {
  const double waited = thread_seconds_of(text_of("/proc/thread-self/schedstat")).waited_seconds;
  return std::isnan(waited) ? 0 : waited;
}

OtherLoad::OtherLoad() : cores_(cores_of_process()), first_(read_load()) {}

std::optional<double> OtherLoad::cores() const { return other_cores(first_, read_load(), cores_); }

}  // namespace pipewright
