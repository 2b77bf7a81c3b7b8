#include "profiler/marks.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "graph/error.h"

namespace pipewright {

Stretch& Stretch::operator+=(const Stretch& other) {
  device_seconds += other.device_seconds;
  host_seconds += other.host_seconds;
  return *this;
}

Marks::Marks(at::Device device)
    : stream_(c10::impl::getDeviceGuardImpl(device.type())->getStream(device)), on_host_(device.is_cpu()) {}

void Marks::clear() { times_.clear(); }

size_t Marks::set() {
  const size_t mark = times_.size();
  if (!on_host_) {
    // BACKEND_DEFAULT: an event that has a time.
    if (mark == events_.size()) events_.emplace_back(stream_.device_type(), c10::EventFlag::BACKEND_DEFAULT);
    events_[mark].record(stream_);
  }
  times_.push_back(std::chrono::steady_clock::now());
  return mark;
}

void Marks::wait() {
  PW_CHECK(!times_.empty(), "waiting for a mark that nobody set");
  if (!on_host_) events_[times_.size() - 1].synchronize();
}

Stretch Marks::between(size_t first, size_t second) const {
  PW_CHECK(first <= second && second < times_.size(),
           first << " to " << second << " of " << times_.size() << " marks");
  Stretch stretch;
  stretch.host_seconds = std::chrono::duration<double>(times_[second] - times_[first]).count();
  constexpr double kSecondsPerMillisecond = 1e-3;
  stretch.device_seconds =
      on_host_ ? stretch.host_seconds : events_[first].elapsedTime(events_[second]) * kSecondsPerMillisecond;
  return stretch;
}

}  // namespace pipewright
