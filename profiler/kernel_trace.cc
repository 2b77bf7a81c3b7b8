#include "profiler/kernel_trace.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

namespace profiler = torch::autograd::profiler;

const std::set<torch::profiler::impl::ActivityType> kDeviceOnly = {torch::profiler::impl::ActivityType::CUDA};

}  // namespace

KernelTrace::KernelTrace(at::Device device) : device_(device), records_(is_possible(device)) {
  if (!records_) return;
  const profiler::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  at::accelerator::synchronizeDevice(device_.index());
  profiler::prepareProfiler(config, kDeviceOnly);
  profiler::enableProfiler(config, kDeviceOnly);
}

KernelTrace::~KernelTrace() {
  if (!records_) return;
  try {
    profiler::disableProfiler();
  } catch (const std::exception&) {
    // What failed while it recorded is on its way already.
  }
}

std::vector<TracedKernel> KernelTrace::end() {
  if (!std::exchange(records_, false)) return {};
  at::accelerator::synchronizeDevice(device_.index());
  const auto record = profiler::disableProfiler();
  std::unordered_map<uint64_t, std::chrono::system_clock::time_point> launches;  // by what links the two
  for (const profiler::KinetoEvent& event : record->events()) {
    if (event.deviceType() != at::kCPU || event.correlationId() == 0) continue;
    const auto middle = std::chrono::nanoseconds((event.startNs() + event.endNs()) / 2);
    launches.emplace(event.correlationId(), std::chrono::system_clock::time_point(middle));
  }
  std::vector<TracedKernel> kernels;
  for (const profiler::KinetoEvent& event : record->events()) {
    if (event.deviceType() != at::kCUDA) continue;
    const auto launch = launches.find(event.correlationId());
    if (launch == launches.end()) continue;  // a range of names, no work
    kernels.push_back(
        {launch->second, static_cast<int64_t>(event.startNs()), static_cast<int64_t>(event.endNs())});
  }
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const TracedKernel& a, const TracedKernel& b) { return a.launched < b.launched; });
  return kernels;
}

double kernel_gap_seconds(const std::vector<TracedKernel>& kernels) {
  constexpr double kMostSeconds = 1e-6;
  std::vector<double> gaps;
  for (size_t i = 1; i < kernels.size(); ++i)
    gaps.push_back(1e-9 * static_cast<double>(kernels[i].begin_ns - kernels[i - 1].end_ns));
  if (gaps.empty()) return 0;
  const auto tenth = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 10);
  std::nth_element(gaps.begin(), tenth, gaps.end());
  return std::clamp(*tenth, 0.0, kMostSeconds);
}

}  // namespace pipewright
