#include "profiler/crowd.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <thread>
#include <vector>

#include "graph/statistics.h"
#include "profiler/thread_count.h"

namespace pipewright {
namespace {

/// Others that train the same until the object ends, each in a thread with weights of its own.
class Others {
 public:
  /// Borrows `another`. They have made a pass each when it returns.
  Others(const std::function<std::unique_ptr<Bench>()>& another, int64_t count, int64_t threads)
      : ready_(static_cast<ptrdiff_t>(count) + 1) {
    const auto train = [this, &another, threads] {
      bool begun = false;
      try {
        const ThreadCount own(threads);  // OpenMP counts by thread
        const at::AutoGradMode grad_mode(true);
        const std::unique_ptr<Bench> bench = another();
        bench->train();
        begun = true;
        ready_.arrive_and_wait();
        while (!ended_) bench->train();
      } catch (const std::exception&) {  // no memory for another one
        failed_ = true;
        if (!begun) ready_.arrive_and_drop();
      }
    };
    for (int64_t i = 0; i < count; ++i) threads_.emplace_back(train);
    ready_.arrive_and_wait();
  }
  ~Others() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  /// One of them no longer trains.
  bool failed() const { return failed_; }

 private:
  std::barrier<> ready_;
  std::atomic<bool> ended_ = false, failed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

CrowdSeconds& CrowdSeconds::operator+=(const CrowdSeconds& other) {
  compute_alone += other.compute_alone;
  compute_beside += other.compute_beside;
  update_alone += other.update_alone;
  update_beside += other.update_beside;
  return *this;
}

std::optional<CrowdSeconds> crowd_seconds(Bench& bench,
                                          const std::function<std::unique_ptr<Bench>()>& another,
                                          int64_t others, int64_t threads, int64_t repeats) {
  constexpr int64_t kTurns = 3;
  const int64_t passes = std::clamp<int64_t>(repeats / kTurns, 2, 6);
  std::vector<double> compute[2], update[2];
  const auto take = [&](bool beside) {
    for (int64_t i = 0; i < passes; ++i) {
      const WholePass pass = bench.time_whole();
      compute[beside].push_back(pass.forward.device_seconds + pass.backward.device_seconds);
      update[beside].push_back(pass.step_in_place.device_seconds);
    }
  };
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    take(false);
    const Others crowd(another, others, threads);
    take(true);
    if (crowd.failed()) return std::nullopt;
  }
  return CrowdSeconds{median(compute[0]), median(compute[1]), median(update[0]), median(update[1])};
}

}  // namespace pipewright
