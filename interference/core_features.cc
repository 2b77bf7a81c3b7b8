#include "interference/core_features.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double clamped(double value, double least, double most) {
  return std::isnan(value) ? value : std::clamp(value, least, most);
}

/// Of the seconds between two readings, the share that the core was busy; NaN if the host does not have it.
double busy_share(const CoreReading& first, const CoreReading& second, int64_t core, bool stolen = false) {
  const auto before = first.host.cores.find(core), after = second.host.cores.find(core);
  if (before == first.host.cores.end() || after == second.host.cores.end()) return kUnknown;
  const double seconds = stolen ? after->second.stolen_seconds - before->second.stolen_seconds
                                : after->second.busy_seconds - before->second.busy_seconds;
  return seconds / (second.at_seconds - first.at_seconds);
}

double mean_busy_share(const CoreReading& first, const CoreReading& second,
                       const std::vector<int64_t>& cores) {
  double sum = 0;
  for (const int64_t core : cores) sum += busy_share(first, second, core);
  return cores.empty() ? kUnknown : clamped(sum / static_cast<double>(cores.size()), 0, 1);
}

constexpr size_t kOfCore = 12;
std::vector<double> features_of_core(const CoreReading& first, const CoreReading& second, int64_t core) {
  const double seconds = second.at_seconds - first.at_seconds;
  const double ran = second.own.ran_seconds - first.own.ran_seconds;
  // Of a rank that hardly ran nothing can be said for each second that it did.
  const double each = ran > 0.02 * seconds ? ran : kUnknown;
  const auto cores = static_cast<double>(std::max<size_t>(1, second.host.cores.size()));
  std::vector<int64_t> neighbours;
  for (const auto& [other, ignored] : second.host.cores)
    if (other != core) neighbours.push_back(other);
  return {clamped(busy_share(first, second, core) - (second.own_seconds - first.own_seconds) / seconds, 0, 1),
          clamped(busy_share(first, second, core, /*stolen=*/true), 0, 1),
          mean_busy_share(first, second, second.siblings), mean_busy_share(first, second, neighbours),
          (second.own.waited_seconds - first.own.waited_seconds) / each,
          (first.host.runnable + second.host.runnable) / 2 / cores, (second.taken - first.taken) / each,
          (second.host.switches - first.host.switches) / seconds / cores,
          clamped((second.cpu_pressure_seconds - first.cpu_pressure_seconds) / seconds, 0, 1),
          clamped((second.memory_pressure_seconds - first.memory_pressure_seconds) / seconds, 0, 1),
          second.megahertz / 1000,
          // A count of which a part was counted may fall by a little.
          clamped((second.cache_misses - first.cache_misses) / each, 0, std::numeric_limits<double>::max())};
}

}  // namespace

std::string CoreReader::text_of(const std::string& file) const {
  std::ifstream in(root_ / file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

CoreReading CoreReader::read() const {
  CoreReading reading;
  reading.at_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (core_) read_core(*core_, &reading);
  if (gpu_) reading.gpu = gpu_->read();
  return reading;
}

void CoreReader::read_core(int64_t core, CoreReading* into) const {
  CoreReading& reading = *into;
  reading.host = host_activity_of(text_of("proc/stat"), static_cast<double>(sysconf(_SC_CLK_TCK)));
  const std::string topology = "sys/devices/system/cpu/cpu" + std::to_string(core) + "/topology/";
  reading.siblings = cores_of_list(text_of(topology + "thread_siblings_list"));
  std::erase(reading.siblings, core);
  reading.own = thread_seconds_of(text_of("proc/self/schedstat"));
  reading.own_seconds = reading.own.ran_seconds;
  std::error_code none;
  double all = 0;
  for (const auto& task : std::filesystem::directory_iterator(root_ / "proc/self/task", none)) {
    const double ran = thread_seconds_of(text_of(std::filesystem::path("proc/self/task") /
                                                 task.path().filename() / "schedstat"))
                           .ran_seconds;
    if (!std::isnan(ran)) all += ran;
  }
  if (all > 0) reading.own_seconds = all;
  reading.taken = involuntary_switches_of(text_of("proc/self/status"));
  reading.cpu_pressure_seconds = pressure_seconds_of(text_of("proc/pressure/cpu"));
  reading.memory_pressure_seconds = pressure_seconds_of(text_of("proc/pressure/memory"));
  reading.megahertz = megahertz_of(text_of("proc/cpuinfo"), core);
  reading.cache_misses = cache_.misses();
}

const std::vector<CoreFeature>& core_feature_rows() {
  static const std::vector<CoreFeature> rows = {
      {"others", "share of the time in which the core ran other processes"},
      {"stolen", "share of the time that the host of the virtual machine took from the core"},
      {"siblings", "how busy the cores are that share its units (hyper-threads)"},
      {"neighbours", "how busy the other cores of the host are"},
      {"waiting", "seconds that the rank waited in the core's run queue, for each second that it ran"},
      {"runnable", "threads that run or wait for a core, for each core of the host", true},
      {"taken", "times that the rank was taken off the core, for each second that it ran", true},
      {"switches", "switches of context a second, for each core of the host", true},
      {"cpu_pressure", "share of the time in which some thread of the host waited for a core (PSI)", true},
      {"memory_pressure", "share of the time in which some thread of the host waited for memory (PSI)"},
      {"gigahertz", "frequency of the core"},
      {"cache_misses", "misses of the last cache, for each second that the rank ran", true},
      {"gpu_others", "share of the time in which the GPU ran other processes"},
      {"gpu_busy", "share of the time in which the GPU ran anything", true},
      {"gpu_memory_busy", "share of the time in which the GPU's memory was read or written", true},
      {"gpu_gigahertz", "frequency of the GPU's multiprocessors"},
      {"gpu_throttled", "1: the GPU's clock is held down for power or heat"},
      {"work_bytes_per_second", "bytes that the work reads and writes in a second when quiet"}};
  return rows;
}

std::vector<std::string> core_feature_names() {
  std::vector<std::string> names;
  for (const CoreFeature& row : core_feature_rows()) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> features_of_ranks_too(const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const CoreFeature& row : core_feature_rows())
    if (row.of_ranks_too && std::find(names.begin(), names.end(), row.name) != names.end())
      found.emplace_back(row.name);
  return found;
}

std::vector<double> core_features(const CoreReading& first, const CoreReading& second,
                                  std::optional<int64_t> core) {
  PW_CHECK(second.at_seconds > first.at_seconds, "two readings at one moment");
  std::vector<double> features =
      core ? features_of_core(first, second, *core) : std::vector<double>(kOfCore, kUnknown);
  PW_CHECK_EQ(features.size(), kOfCore);
  const GpuReading& gpu = second.gpu;
  features.insert(features.end(), {gpu.others, gpu.busy, gpu.memory_busy, gpu.gigahertz, gpu.throttled});
  return features;
}

std::vector<double> with_work(std::vector<double> core, double bytes_per_second) {
  core.push_back(bytes_per_second);
  return core;
}

std::vector<int64_t> cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int64_t> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int64_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  return cores;
}

std::optional<int64_t> core_of_process() {
  const std::vector<int64_t> cores = cores_of_process();
  return cores.size() == 1 ? std::optional(cores[0]) : std::nullopt;
}

}  // namespace pipewright
