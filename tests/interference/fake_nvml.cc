// A shared library with the functions of NVIDIA's management library that Pipewright calls. As an old one it
// cannot tell processes apart, and has the clock's reasons by their old name only.
#include "tests/interference/fake_nvml.h"

#include <algorithm>

namespace pipewright::testing {
namespace {

FakeNvml state;
int the_device = 0;
constexpr int kUnknownError = 999;

bool fails(const char* name, nvml::Device device = &the_device) {
  return state.begun == 0 || device != &the_device || state.failing.count(name) > 0;
}

}  // namespace

extern "C" {

FakeNvml* fake_nvml_state() { return &state; }

int nvmlInit_v2() {
  if (state.failing.count("Init_v2")) return kUnknownError;
  ++state.begun;
  return nvml::kSuccess;
}

int nvmlShutdown() {
  --state.begun;
  return nvml::kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, nvml::Device* device) {
  if (fails("DeviceGetHandleByUUID")) return kUnknownError;
  if (state.device != uuid) return nvml::kNotFound;
  *device = &the_device;
  return nvml::kSuccess;
}

int nvmlDeviceGetUtilizationRates(nvml::Device device, nvml::Utilization* utilization) {
  if (fails("DeviceGetUtilizationRates", device)) return kUnknownError;
  *utilization = state.used;
  return nvml::kSuccess;
}

int nvmlDeviceGetClockInfo(nvml::Device device, int type, unsigned int* megahertz) {
  if (fails("DeviceGetClockInfo", device) || type != nvml::kClockOfMultiprocessors) return kUnknownError;
  *megahertz = state.megahertz;
  return nvml::kSuccess;
}

#ifdef PIPEWRIGHT_FAKE_NVML_IS_OLD
int nvmlDeviceGetCurrentClocksThrottleReasons(nvml::Device device, unsigned long long* reasons) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(nvml::Device device, unsigned long long* reasons) {
#endif
  if (fails("DeviceGetCurrentClocksReasons", device)) return kUnknownError;
  *reasons = state.reasons;
  return nvml::kSuccess;
}

#ifndef PIPEWRIGHT_FAKE_NVML_IS_OLD
int nvmlDeviceGetProcessUtilization(nvml::Device device, nvml::ProcessUtilizationSample* utilization,
                                    unsigned int* count, unsigned long long lastSeenTimeStamp) {
  if (fails("DeviceGetProcessUtilization", device)) return kUnknownError;
  state.asked_since = lastSeenTimeStamp;
  std::vector<nvml::ProcessUtilizationSample> shown;
  for (const auto& sample : state.samples)
    if (state.shows_old_samples || sample.timeStamp > lastSeenTimeStamp) shown.push_back(sample);
  if (shown.empty()) return nvml::kNotFound;
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(shown.size());
  if (!utilization || room < shown.size()) return nvml::kInsufficientSize;
  if (fails("DeviceGetProcessUtilization twice")) return kUnknownError;
  std::copy(shown.begin(), shown.end(), utilization);
  return nvml::kSuccess;
}
#endif

}  // extern "C"
}  // namespace pipewright::testing
