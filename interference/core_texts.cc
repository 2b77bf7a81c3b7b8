#include "interference/core_texts.h"

#include <limits>
#include <sstream>

namespace pipewright {
namespace {

constexpr double kNotSaid = std::numeric_limits<double>::quiet_NaN();
constexpr double kNano = 1e-9, kMicroOfPressure = 1e-6;

/// The number behind the first `name` that begins a line.
double number_behind(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name, 0) != 0) continue;
    std::istringstream rest(line.substr(name.size()));
    double value = 0;
    if (rest >> value) return value;
  }
  return kNotSaid;
}

/// "cpu7 user nice system idle iowait irq softirq steal ...", in ticks; false for another line.
bool read_core(const std::string& line, double ticks_per_second, HostActivity* activity) {
  if (line.rfind("cpu", 0) != 0 || line.size() < 4 || line[3] < '0' || line[3] > '9') return false;
  std::istringstream words(line.substr(3));
  int64_t core = 0;
  double user = 0, nice = 0, system = 0, idle = 0;
  if (!(words >> core >> user >> nice >> system >> idle)) return false;
  double waiting = 0, interrupts = 0, soft_interrupts = 0, stolen = 0;
  words >> waiting >> interrupts >> soft_interrupts >> stolen;  // old kernels have fewer: 0 then
  activity->cores[core] = {(user + nice + system + interrupts + soft_interrupts) / ticks_per_second,
                           stolen / ticks_per_second};
  return true;
}

}  // namespace

HostActivity host_activity_of(const std::string& text, double ticks_per_second) {
  HostActivity activity;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) read_core(line, ticks_per_second, &activity);
  activity.switches = number_behind(text, "ctxt ");
  activity.runnable = number_behind(text, "procs_running ");
  return activity;
}

double pressure_seconds_of(const std::string& text) {
  const size_t some = text.find("some ");
  const size_t total = some == std::string::npos ? some : text.find(" total=", some);
  if (total == std::string::npos) return kNotSaid;
  std::istringstream words(text.substr(total + 7));
  double microseconds = 0;
  return words >> microseconds ? microseconds * kMicroOfPressure : kNotSaid;
}

ThreadSeconds thread_seconds_of(const std::string& text) {
  std::istringstream words(text);
  double ran = 0, waited = 0;
  if (!(words >> ran >> waited)) return {kNotSaid, kNotSaid};
  return {ran * kNano, waited * kNano};
}

double involuntary_switches_of(const std::string& text) {
  return number_behind(text, "nonvoluntary_ctxt_switches:");
}

double megahertz_of(const std::string& text, int64_t core) {
  std::istringstream lines(text);
  int64_t at = -1;
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream value(line.substr(colon + 1));
    if (line.rfind("processor", 0) == 0) {
      value >> at;
    } else if (at == core && line.rfind("cpu MHz", 0) == 0) {
      double megahertz = 0;
      return value >> megahertz ? megahertz : kNotSaid;
    }
  }
  return kNotSaid;
}

std::vector<int64_t> cores_of_list(const std::string& text) {
  constexpr int64_t kMostCores = 1 << 16;
  std::vector<int64_t> cores;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::istringstream words(part);
    int64_t first = 0, last = 0;
    char dash = 0;
    if (!(words >> first)) return {};
    last = first;
    if (words >> dash && (dash != '-' || !(words >> last))) return {};
    if (first < 0 || last < first || last > kMostCores) return {};
    for (int64_t core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

}  // namespace pipewright
