#include "profiler/marks.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <ctime>

#include "graph/error.h"

namespace pipewright {
namespace {

double core_seconds_of_thread() {
  timespec had = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &had);
  return static_cast<double>(had.tv_sec) + 1e-9 * static_cast<double>(had.tv_nsec);
}

}  // namespace

Stretch& Stretch::operator+=(const Stretch& other) {
  device_seconds += other.device_seconds;
  host_seconds += other.host_seconds;
  kernels += other.kernels;
  kernel_seconds += other.kernel_seconds;
  return *this;
}

Marks::Marks(at::Device device)
    : stream_(c10::impl::getDeviceGuardImpl(device.type())->getStream(device)),
      on_host_(device.is_cpu()),
      is_one_thread_(at::get_num_threads() == 1) {}

void Marks::clear() {
  times_.clear();
  recorded_times_.clear();
  launches_.clear();
  kernel_sums_.clear();
  core_seconds_.clear();
}

size_t Marks::set() {
  const size_t mark = times_.size();
  if (!on_host_) {
    // BACKEND_DEFAULT: an event that has a time.
    if (mark == events_.size()) events_.emplace_back(stream_.device_type(), c10::EventFlag::BACKEND_DEFAULT);
    events_[mark].record(stream_);
    recorded_times_.push_back(Clock::now());
  }
  times_.push_back(std::chrono::steady_clock::now());
  if (on_host_ && is_one_thread_) core_seconds_.push_back(core_seconds_of_thread());
  return mark;
}

void Marks::wait() {
  PW_CHECK(!times_.empty(), "waiting for a mark that nobody set");
  if (!on_host_) events_[times_.size() - 1].synchronize();
}

void Marks::take(const std::vector<TracedKernel>& kernels) {
  PW_CHECK(launches_.empty(), "two records of one pass");
  kernel_sums_.push_back(0);
  for (const TracedKernel& kernel : kernels) {
    launches_.push_back(kernel.launched);
    kernel_sums_.push_back(kernel_sums_.back() + kernel.seconds());
  }
}

Stretch Marks::between(size_t first, size_t second) const {
  PW_CHECK(first <= second && second < times_.size(),
           first << " to " << second << " of " << times_.size() << " marks");
  Stretch stretch;
  stretch.host_seconds = std::chrono::duration<double>(times_[second] - times_[first]).count();
  if (!launches_.empty()) {
    const auto launched_before = [&](size_t mark) {
      return std::lower_bound(launches_.begin(), launches_.end(), recorded_times_[mark]) - launches_.begin();
    };
    const auto from = launched_before(first), to = launched_before(second);
    stretch.kernels = to - from;
    stretch.kernel_seconds = kernel_sums_[static_cast<size_t>(to)] - kernel_sums_[static_cast<size_t>(from)];
  }
  constexpr double kSecondsPerMillisecond = 1e-3;
  if (!on_host_)
    stretch.device_seconds = events_[first].elapsedTime(events_[second]) * kSecondsPerMillisecond;
  else if (is_one_thread_)
    stretch.device_seconds = std::min(stretch.host_seconds, core_seconds_[second] - core_seconds_[first]);
  else
    stretch.device_seconds = stretch.host_seconds;
  return stretch;
}

}  // namespace pipewright
