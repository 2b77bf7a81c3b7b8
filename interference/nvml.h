// The part of NVML's interface that is called (docs.nvidia.com/deploy/nvml-api), declared here so that
// nothing of NVIDIA's is needed to build. Names are NVML's, without its prefix.
#pragma once

namespace pipewright::nvml {

using Device = void*;

/// nvmlReturn_t; every call returns one.
enum Return : int { kSuccess = 0, kNotFound = 6, kInsufficientSize = 7 };

/// nvmlUtilization_t: percent of the past sample period.
struct Utilization {
  unsigned int gpu, memory;
};

/// nvmlProcessUtilizationSample_t: percents; microseconds since 1970.
struct ProcessUtilizationSample {
  unsigned int pid;
  unsigned long long timeStamp;
  unsigned int smUtil, memUtil, encUtil, decUtil;
};

/// nvmlClockType_t.
constexpr int kClockOfMultiprocessors = 1;

/// nvmlClocksEventReasons: why the clock is lower than it could be; those of power and heat.
constexpr unsigned long long kSwPowerCap = 0x4, kHwSlowdown = 0x8, kSwThermalSlowdown = 0x20,
                             kHwThermalSlowdown = 0x40, kHwPowerBrakeSlowdown = 0x80;

using Init_v2 = int();
using Shutdown = int();
using DeviceGetHandleByUUID = int(const char* uuid, Device* device);
using DeviceGetUtilizationRates = int(Device device, Utilization* utilization);
/// `utilization` null: `count` becomes how many there are, with kInsufficientSize. Else `count` is the room
/// there, and becomes what was written. Samples after `lastSeenTimeStamp`, one for each process that used the
/// device in its last sample period; kNotFound: none.
using DeviceGetProcessUtilization = int(Device device, ProcessUtilizationSample* utilization,
                                        unsigned int* count, unsigned long long lastSeenTimeStamp);
using DeviceGetClockInfo = int(Device device, int type, unsigned int* megahertz);
/// Older drivers have it as nvmlDeviceGetCurrentClocksThrottleReasons.
using DeviceGetCurrentClocksEventReasons = int(Device device, unsigned long long* reasons);

}  // namespace pipewright::nvml
