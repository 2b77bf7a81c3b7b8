// What files of Linux's /proc and /sys say of cores and pressure, as numbers. What a text does not say is
// NaN or absent: kernels and containers leave some of them out.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pipewright {

struct CoreSeconds {
  double busy_seconds = 0;    ///< since the host started; not idle, not waiting for a disk, not stolen
  double stolen_seconds = 0;  ///< that the host of a virtual machine gave to others
};

/// /proc/stat.
struct HostActivity {
  std::map<int64_t, CoreSeconds> cores;
  double switches = 0;  ///< of context, since the host started
  double runnable = 0;  ///< threads that run or wait for a core, now
};
HostActivity host_activity_of(const std::string& text, double ticks_per_second);

/// /proc/pressure/cpu, memory: seconds in which some thread waited for it.
double pressure_seconds_of(const std::string& text);

/// /proc/PID/schedstat: of a thread.
struct ThreadSeconds {
  double ran_seconds = 0;
  double waited_seconds = 0;  ///< runnable, while its core ran something else
};
ThreadSeconds thread_seconds_of(const std::string& text);

/// /proc/PID/status: times that the thread was taken off its core.
double involuntary_switches_of(const std::string& text);

/// /proc/cpuinfo: "cpu MHz" of the core.
double megahertz_of(const std::string& text, int64_t core);

/// /sys/.../thread_siblings_list: "0,4" or "0-1"; what is no list is empty.
std::vector<int64_t> cores_of_list(const std::string& text);

}  // namespace pipewright
