#include "profiler/interference.h"

#include <ATen/core/grad_mode.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "graph/error.h"
#include "graph/statistics.h"
#include "interference/core_features.h"
#include "interference/hogs.h"
#include "interference/work.h"
#include "models/device/cuda_plugin.h"
#include "models/device/device.h"
#include "profiler/bench.h"
#include "profiler/core_affinity.h"
#include "profiler/thread_count.h"

namespace pipewright {
namespace {

using WindowClock = std::chrono::steady_clock;

/// Before the first window beside hogs: they have started, and the scheduler has settled. On a GPU, after
/// them too: until NVML, which looks back (interference/gpu_counters.h), sees nothing of before.
constexpr double kSettleSeconds = 0.1, kGpuSettleSeconds = 1.5;

/// Parts of the time in which a rank waits for messages; windows take turns. A hog runs meanwhile, so what
/// the core does is not what the rank suffers.
constexpr std::array<double, 3> kIdle = {0, 0.25, 0.5};

// Null of the CPU.
std::unique_ptr<const GpuCounters> counters_of(at::Device device) {
  if (!device.is_cuda()) return nullptr;
  return std::make_unique<const GpuCounters>(cuda_plugin("interference").device_identity(device.index()));
}

struct Window {
  std::string kind;  // kQuietGroup: no hogs
  int64_t processes = 0;
  std::vector<double> features;  // of core and GPU
  std::vector<double> seconds;   // by segment, of one pass
};

class Windows {
 public:
  /// Borrows all of it.
  Windows(Bench& bench, const std::vector<size_t>& segment_of, size_t segments,
          const InterferenceSettings& settings)
      : bench_(bench), segment_of_(segment_of), segments_(segments), settings_(settings) {}

  std::vector<Window> all() {
    const auto orders = static_cast<int64_t>(settings_.kinds.size()) * settings_.most_processes;
    expected_ = static_cast<double>(settings_.repeats + orders * (settings_.repeats + 1));
    take_beside_ranks(kQuietGroup, 0);
    for (const std::string& kind : settings_.kinds) {
      for (int64_t processes = 1; processes <= settings_.most_processes; ++processes) {
        take(kQuietGroup, 0);
        const std::unique_ptr<Hogs> hogs = start(kind, processes);
        settle();
        take_beside_ranks(kind, processes);
        hogs->end();
        if (is_on_gpu()) settle();
      }
    }
    return std::move(windows_);
  }

 private:
  bool is_on_gpu() const { return !settings_.device.is_cpu(); }

  // Hogs of a GPU need a core too: any.
  std::unique_ptr<Hogs> start(const std::string& kind, int64_t processes) const {
    std::optional<CoreAffinity> unbound;
    if (is_on_gpu()) unbound.emplace(std::nullopt);
    return std::make_unique<Hogs>(settings_.hog_command(
        {kind, settings_.core, processes, is_on_gpu() ? settings_.device.str() : std::string()}));
  }

  /// On a core with its waits for it: that is what hogs take.
  double taken_by(const Stretch& work) const { return is_on_gpu() ? work.device_seconds : work.host_seconds; }

  void settle() { run_for(is_on_gpu() ? kGpuSettleSeconds : kSettleSeconds, 0, nullptr); }

  // All windows of a kind, the second half of them beside what keeps the other cores busy.
  void take_beside_ranks(const std::string& kind, int64_t processes) {
    const int64_t alone = settings_.other_cores.empty() ? settings_.repeats : (settings_.repeats + 1) / 2;
    for (int64_t i = 0; i < alone; ++i) take(kind, processes);
    if (alone == settings_.repeats) return;
    std::vector<std::unique_ptr<Hogs>> ranks;
    {
      const CoreAffinity unbound(std::nullopt);  // a process may only run where the thread may that starts it
      for (const int64_t core : settings_.other_cores)
        ranks.push_back(std::make_unique<Hogs>(settings_.hog_command({"matrix", core, 1, ""})));
    }
    run_for(kSettleSeconds, 0, nullptr);  // the GPU is as it was
    for (int64_t i = alone; i < settings_.repeats; ++i) take(kind, processes);
  }

  // Whole passes, at least one; how many.
  int64_t run_for(double seconds, double idle, std::vector<double>* sums) {
    const auto begin = WindowClock::now();
    int64_t passes = 0;
    do {
      const auto pass_began = WindowClock::now();
      const NodesPass pass = bench_.time_nodes();
      if (idle > 0) std::this_thread::sleep_for((WindowClock::now() - pass_began) * (idle / (1 - idle)));
      ++passes;
      for (size_t node = 0; sums && node < segment_of_.size(); ++node)
        (*sums)[segment_of_[node]] += taken_by(pass.forward[node]) + taken_by(pass.backward[node]);
    } while (std::chrono::duration<double>(WindowClock::now() - begin).count() < seconds);
    return passes;
  }

  void take(const std::string& kind, int64_t processes) {
    Window window{kind, processes, {}, std::vector<double>(segments_)};
    const CoreReading first = reader_.read();
    const double idle = kIdle[windows_.size() % kIdle.size()];
    const int64_t passes = run_for(settings_.window_seconds, idle, &window.seconds);
    window.features = core_features(first, reader_.read(), settings_.core);
    for (double& seconds : window.seconds) seconds /= static_cast<double>(passes);
    windows_.push_back(std::move(window));
    if (!settings_.progress) return;
    const double done = static_cast<double>(windows_.size()) / expected_;
    const double elapsed = std::chrono::duration<double>(WindowClock::now() - began_).count();
    settings_.progress(done, elapsed / done * (1 - done));
  }

  Bench& bench_;
  const std::vector<size_t>& segment_of_;
  const size_t segments_;
  const InterferenceSettings& settings_;
  const CoreReader reader_{settings_.core, counters_of(settings_.device)};
  const WindowClock::time_point began_ = WindowClock::now();
  double expected_ = 1;
  std::vector<Window> windows_;
};

}  // namespace

InterferenceData measure_interference(const Model& model, const std::vector<at::Tensor>& inputs,
                                      const Profile& profile, const InterferenceSettings& settings) {
  const ThreadCount one_thread(1);  // as a rank has on its core
  const at::AutoGradMode grad_mode(true);
  Bench bench(model, inputs, settings.seed, settings.device);
  bench.find_gradient_flow();
  const auto segments = stretches_of_work(profile, settings.segments);
  std::map<std::string, size_t> segment_of_name;
  for (size_t s = 0; s < segments.size(); ++s)
    for (const std::string& node : segments[s]) segment_of_name[node] = s;
  std::vector<size_t> segment_of;
  for (const Node& node : model.graph.nodes) segment_of.push_back(segment_of_name.at(node.name));
  bench.time_nodes();  // the first is unlike the others

  const std::vector<Window> windows = Windows(bench, segment_of, segments.size(), settings).all();
  InterferenceData data;
  data.features = core_feature_names();
  for (size_t s = 0; s < segments.size(); ++s) {
    std::vector<double> quiet;
    for (const Window& window : windows)
      if (window.kind == kQuietGroup) quiet.push_back(window.seconds[s]);
    const double baseline = median(quiet);
    if (baseline <= 0) continue;  // nothing in it takes time
    const double bytes = work_bytes_per_second(profile, segments[s]);
    const std::string work = profile.model + " " + segments[s].front() +
                             (segments[s].size() > 1 ? " .. " + segments[s].back() : std::string());
    for (const Window& window : windows)
      data.rows.push_back({window.kind, window.processes, work, with_work(window.features, bytes),
                           window.seconds[s] / baseline});
  }
  return data;
}

}  // namespace pipewright
