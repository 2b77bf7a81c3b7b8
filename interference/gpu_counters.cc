#include "interference/gpu_counters.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "interference/nvml.h"

namespace pipewright {
namespace {

// The mean over the samples of each process, summed over all but this one.
double share_of_others(const std::vector<nvml::ProcessUtilizationSample>& samples,
                       unsigned long long since_microseconds) {
  std::map<unsigned int, std::pair<double, int>> percents;  // by process: their sum, and how many
  for (const nvml::ProcessUtilizationSample& sample : samples) {
    // What is more than all of it, or older than asked for, is no sample.
    if (sample.smUtil > 100 || sample.timeStamp <= since_microseconds) continue;
    auto& [sum, count] = percents[sample.pid];
    sum += sample.smUtil;
    ++count;
  }
  percents.erase(static_cast<unsigned int>(::getpid()));
  double share = 0;
  for (const auto& [process, percent] : percents) share += percent.first / percent.second / 100;
  return std::min(share, 1.0);
}

}  // namespace

class GpuCounters::Nvml {
 public:
  Nvml(void* library, const std::string& name)
      : library_(library),
        shutdown_(function<nvml::Shutdown>("nvmlShutdown")),
        utilization_(function<nvml::DeviceGetUtilizationRates>("nvmlDeviceGetUtilizationRates")),
        processes_(function<nvml::DeviceGetProcessUtilization>("nvmlDeviceGetProcessUtilization")),
        clock_(function<nvml::DeviceGetClockInfo>("nvmlDeviceGetClockInfo")),
        reasons_(
            function<nvml::DeviceGetCurrentClocksEventReasons>("nvmlDeviceGetCurrentClocksEventReasons")) {
    if (!reasons_)
      reasons_ =
          function<nvml::DeviceGetCurrentClocksEventReasons>("nvmlDeviceGetCurrentClocksThrottleReasons");
    auto* const init = function<nvml::Init_v2>("nvmlInit_v2");
    auto* const handle = function<nvml::DeviceGetHandleByUUID>("nvmlDeviceGetHandleByUUID");
    has_begun_ = init && init() == nvml::kSuccess;
    if (!has_begun_ || !handle || handle(name.c_str(), &device_) != nvml::kSuccess) device_ = nullptr;
  }
  ~Nvml() {
    if (has_begun_ && shutdown_) shutdown_();
    ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  GpuReading read() const {
    GpuReading reading;
    if (!device_) return reading;
    reading.others = others();
    nvml::Utilization used{};
    if (utilization_ && utilization_(device_, &used) == nvml::kSuccess) {
      reading.busy = used.gpu / 100.0;
      reading.memory_busy = used.memory / 100.0;
    }
    unsigned int megahertz = 0;
    if (clock_ && clock_(device_, nvml::kClockOfMultiprocessors, &megahertz) == nvml::kSuccess)
      reading.gigahertz = megahertz / 1000.0;
    unsigned long long reasons = 0;
    constexpr unsigned long long kOfPowerOrHeat = nvml::kSwPowerCap | nvml::kHwSlowdown |
                                                  nvml::kSwThermalSlowdown | nvml::kHwThermalSlowdown |
                                                  nvml::kHwPowerBrakeSlowdown;
    if (reasons_ && reasons_(device_, &reasons) == nvml::kSuccess)
      reading.throttled = (reasons & kOfPowerOrHeat) != 0 ? 1 : 0;
    return reading;
  }

 private:
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }

  // As far back as a sample period may be long, and a little more: no sample then means that nobody ran.
  double others() const {
    if (!processes_) return GpuReading::kNotSaid;
    constexpr std::chrono::microseconds kBack(1'250'000);
    const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    const auto since = static_cast<unsigned long long>((now - kBack).count());
    unsigned int count = 0;
    int answer = processes_(device_, nullptr, &count, since);
    if (answer == nvml::kNotFound || (answer == nvml::kSuccess && count == 0)) return 0;
    if (answer != nvml::kSuccess && answer != nvml::kInsufficientSize) return GpuReading::kNotSaid;
    constexpr unsigned int kMoreMeanwhile = 16;
    std::vector<nvml::ProcessUtilizationSample> samples(count + kMoreMeanwhile);
    count = static_cast<unsigned int>(samples.size());
    answer = processes_(device_, samples.data(), &count, since);
    if (answer == nvml::kNotFound) return 0;
    if (answer != nvml::kSuccess) return GpuReading::kNotSaid;
    samples.resize(std::min<size_t>(count, samples.size()));
    return share_of_others(samples, since);
  }

  void* const library_;
  nvml::Shutdown* const shutdown_;
  nvml::DeviceGetUtilizationRates* const utilization_;
  nvml::DeviceGetProcessUtilization* const processes_;
  nvml::DeviceGetClockInfo* const clock_;
  nvml::DeviceGetCurrentClocksEventReasons* reasons_;
  bool has_begun_ = false;
  nvml::Device device_ = nullptr;  // null: it does not know the device
};

GpuCounters::GpuCounters(const std::string& identity, const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened) nvml_ = std::make_unique<Nvml>(opened, nvml_name(identity));
}

GpuCounters::~GpuCounters() = default;

GpuReading GpuCounters::read() const { return nvml_ ? nvml_->read() : GpuReading{}; }

std::string nvml_name(const std::string& identity) {
  if (identity.size() != 32) return "";
  std::string name = "GPU";
  size_t begin = 0;
  for (const size_t digits : {8, 4, 4, 4, 12}) {
    name += "-" + identity.substr(begin, digits);
    begin += digits;
  }
  return name;
}

}  // namespace pipewright
