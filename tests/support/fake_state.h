// What the parts of the fake device (tests/support/fake_device.h) share: its name, its counters, its clock.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace pipewright::testing {

inline constexpr at::DeviceType kFake = at::kPrivateUse1;
inline constexpr c10::DeviceIndex kFakeDevices = 2;

/// As FakeDeviceCounts; `late`: queries until an event is complete.
struct FakeCounters {
  std::atomic<int64_t> operators = 0, uploads = 0, blocking_uploads = 0, downloads = 0, waits = 0, late = 0;
  std::atomic<int64_t> event_waits = 0, uploaded_bytes = 0;
};
FakeCounters& fake_counters();

/// The time of the device. Any thread.
void set_fake_seconds(std::function<double(const std::string&)> seconds_of);
void spend_fake_time(const std::string& op);
double fake_seconds();

}  // namespace pipewright::testing
