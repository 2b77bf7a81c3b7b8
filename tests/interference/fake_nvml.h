// What the stand-in for NVML (fake_nvml.cc) answers: the test that has opened it says so.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "interference/nvml.h"

namespace pipewright::testing {

struct FakeNvml {
  std::string device = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";
  std::set<std::string>
      failing;  ///< names of functions without "nvml", or "DeviceGetProcessUtilization twice"
  nvml::Utilization used{80, 30};
  unsigned int megahertz = 1410;
  unsigned long long reasons = 0;
  /// With times in microseconds from now on; those in the past are left out as NVML does.
  std::vector<nvml::ProcessUtilizationSample> samples;
  bool shows_old_samples = false;  ///< as some drivers do
  int begun = 0;                   ///< calls of nvmlInit_v2 that worked less those of nvmlShutdown
  unsigned long long asked_since = 0;
};

/// The one function that NVML itself has not; never null.
using FakeNvmlState = FakeNvml*();
inline constexpr const char* kFakeNvmlState = "fake_nvml_state";

}  // namespace pipewright::testing
