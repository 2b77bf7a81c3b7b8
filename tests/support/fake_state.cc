#include "tests/support/fake_state.h"

#include <chrono>
#include <mutex>
#include <utility>

namespace pipewright::testing {
namespace {

class DeviceClock {
 public:
  void set(std::function<double(const std::string&)> seconds_of) {
    const std::lock_guard<std::mutex> lock(mutex_);
    seconds_of_ = std::move(seconds_of);
    seconds_ = 0;
  }
  void run(const std::string& op) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (seconds_of_) seconds_ += seconds_of_(op);
  }
  double seconds() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (seconds_of_) return seconds_;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

 private:
  std::mutex mutex_;
  std::function<double(const std::string&)> seconds_of_;
  double seconds_ = 0;
};
DeviceClock& device_clock() {
  static DeviceClock clock;
  return clock;
}

}  // namespace

FakeCounters& fake_counters() {
  static FakeCounters counters;
  return counters;
}

void set_fake_seconds(std::function<double(const std::string&)> seconds_of) {
  device_clock().set(std::move(seconds_of));
}

void spend_fake_time(const std::string& op) { device_clock().run(op); }

double fake_seconds() { return device_clock().seconds(); }

}  // namespace pipewright::testing
