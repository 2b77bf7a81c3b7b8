#include "profiler/crowd.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include "graph/statistics.h"
#include "profiler/thread_count.h"

namespace pipewright {
namespace {

enum class Pace {
  kFree,    ///< the others train as they like, as ranks of a pipeline
  kInStep,  ///< as replicas: all wait for each other before each pass, and sum their gradients after it
  kByTurns  ///< while the one that is timed waits
};

/// Replicas that wait for each other and sum their gradients, each in a thread.
class Replicas {
 public:
  explicit Replicas(size_t count) : barrier_(static_cast<ptrdiff_t>(count)), gradients_(count) {}

  void meet() { barrier_.arrive_and_wait(); }
  /// The others no longer wait for this one.
  void leave() { barrier_.arrive_and_drop(); }
  /// As an all-reduce between processes: each replica sums its part of all gradients, then takes the other
  /// parts from those who have them. What is left in the caches is what matters.
  void sum(size_t replica, const std::vector<at::Tensor>& gradients) {
    const at::NoGradGuard no_grad;
    gradients_[replica] = gradients;
    meet();
    for_others(replica, [&](size_t other, size_t i) {
      part_of(replica, i, replica).add_(part_of(other, i, replica));
    });
    meet();
    for_others(replica,
               [&](size_t other, size_t i) { part_of(replica, i, other).copy_(part_of(other, i, other)); });
    meet();
  }

 private:
  /// Each gradient of each other replica; one that left before it had any has none.
  template <typename Visit>
  void for_others(size_t replica, const Visit& visit) const {
    for (size_t i = 0; i < gradients_[replica].size(); ++i) {
      for (size_t other = 0; other < gradients_.size(); ++other)
        if (other != replica && !gradients_[other].empty()) visit(other, i);
    }
  }
  /// Of gradient `i` of a replica, what replica `part` sums. They have no gaps, in whatever order they lie.
  at::Tensor part_of(size_t replica, size_t i, size_t part) const {
    const at::Tensor& all = gradients_[replica][i];
    const at::Tensor flat = all.as_strided({all.numel()}, {1});
    const auto count = static_cast<int64_t>(gradients_.size()), number = static_cast<int64_t>(part);
    return flat.slice(0, flat.numel() * number / count, flat.numel() * (number + 1) / count);
  }

  std::barrier<> barrier_;
  std::vector<std::vector<at::Tensor>> gradients_;  // by replica
};

/// Others that train the same until the object ends, each in a thread with weights of its own.
class Others {
 public:
  /// Borrows `another`. They have made a pass each when it returns.
  Others(const std::function<std::unique_ptr<Bench>()>& another, int64_t count, int64_t threads, Pace pace)
      : pace_(pace), ready_(static_cast<ptrdiff_t>(count) + 1), replicas_(static_cast<size_t>(count) + 1) {
    const auto train = [this, &another, threads](size_t replica) {
      bool begun = false;
      try {
        const ThreadCount own(threads);  // OpenMP counts by thread
        const at::AutoGradMode grad_mode(true);
        const std::unique_ptr<Bench> bench = another();
        Bench::InFlight in_flight;
        bench->train();
        begun = true;
        ready_.arrive_and_wait();
        if (pace_ == Pace::kFree)
          while (!ended_) bench->time_in_pipeline(in_flight);
        else
          keep_step(*bench, replica);
      } catch (const std::exception&) {  // no memory for another one
        failed_ = true;
        if (!begun) ready_.arrive_and_drop();
        if (pace_ != Pace::kFree) replicas_.leave();
      }
    };
    for (int64_t i = 0; i < count; ++i) threads_.emplace_back(train, static_cast<size_t>(i) + 1);
    ready_.arrive_and_wait();
  }
  ~Others() {
    ended_ = true;
    if (pace_ != Pace::kFree) replicas_.leave();  // wherever this one was interrupted, the others go on
    for (std::thread& thread : threads_) thread.join();
  }

  /// One pass in step with them, kInStep.
  ReplicaPass time_in_step(Bench& bench) {
    replicas_.meet();
    return time_replica(bench, 0);
  }
  /// One pass whose forward and backward each come after one of theirs, kByTurns.
  Stretch time_by_turns(Bench& bench) {
    return bench.time_by_turns([&] {
      replicas_.meet();
      replicas_.meet();
    });
  }
  /// One of them no longer trains.
  bool failed() const { return failed_; }

 private:
  ReplicaPass time_replica(Bench& bench, size_t replica) {
    return bench.time_replica(
        [&] { replicas_.meet(); },
        [&](const std::vector<at::Tensor>& gradients) { replicas_.sum(replica, gradients); });
  }
  void keep_step(Bench& bench, size_t replica) {
    while (true) {
      replicas_.meet();
      if (ended_) return;
      if (pace_ == Pace::kInStep) {
        time_replica(bench, replica);
        continue;
      }
      bench.train();
      replicas_.meet();
    }
  }

  const Pace pace_;
  std::barrier<> ready_;
  Replicas replicas_;
  std::atomic<bool> ended_ = false, failed_ = false;
  std::vector<std::thread> threads_;
};

struct PassSamples {
  std::vector<double> compute, update;
};

}  // namespace

CrowdSeconds& CrowdSeconds::operator+=(const CrowdSeconds& other) {
  compute_alone += other.compute_alone;
  compute_beside += other.compute_beside;
  update_alone += other.update_alone;
  update_beside += other.update_beside;
  replica_compute_alone += other.replica_compute_alone;
  replica_compute_in_step += other.replica_compute_in_step;
  replica_update_alone += other.replica_update_alone;
  replica_update_in_step += other.replica_update_in_step;
  compute_by_turns += other.compute_by_turns;
  return *this;
}

ProfiledCrowd CrowdSeconds::factors(int64_t ranks) const {
  const auto factor = [](double beside, double alone) { return std::max(1.0, beside / alone); };
  return {ranks,
          factor(compute_beside, compute_alone),
          factor(update_beside, update_alone),
          factor(replica_compute_in_step, replica_compute_alone),
          factor(replica_update_in_step, replica_update_alone),
          factor(compute_by_turns, compute_alone)};
}

std::optional<CrowdSeconds> crowd_seconds(Bench& bench,
                                          const std::function<std::unique_ptr<Bench>()>& another,
                                          int64_t others, int64_t threads, int64_t repeats,
                                          double least_seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kTurns = 3;
  constexpr double kSecondsOfTurn = 1;  // of each pace, about: slow passes scatter less
  const WholePass first = bench.time_whole();
  const double pass_seconds = std::max(1e-6, first.forward.device_seconds + first.backward.device_seconds);
  const int64_t passes = std::clamp<int64_t>(
      std::min(repeats / kTurns, static_cast<int64_t>(kSecondsOfTurn / pass_seconds)), 2, 6);
  PassSamples alone, replica_alone, in_step;
  std::vector<double> compute_beside, update_beside, by_turns;
  const Clock::time_point start = Clock::now();
  const auto goes_on = [&](int64_t turn) {
    return turn < kTurns || std::chrono::duration<double>(Clock::now() - start).count() < least_seconds;
  };
  for (int64_t turn = 0; goes_on(turn); ++turn) {
    for (int64_t i = 0; i < passes; ++i) {
      const WholePass pass = bench.time_whole();
      const double compute = pass.forward.device_seconds + pass.backward.device_seconds;
      alone.compute.push_back(compute);
      alone.update.push_back(pass.step_in_place.device_seconds);
      replica_alone.compute.push_back(compute + pass.gradient_copy.device_seconds);
      replica_alone.update.push_back(pass.gradient_divide.device_seconds + pass.step_in_place.device_seconds);
    }
    {
      const Others crowd(another, others, threads, Pace::kFree);
      Bench::InFlight in_flight;
      for (int64_t i = 0; i < passes; ++i) {
        update_beside.push_back(bench.time_whole().step_in_place.device_seconds);
        compute_beside.push_back(bench.time_in_pipeline(in_flight).device_seconds);
      }
      if (crowd.failed()) return std::nullopt;
    }
    Others replicas(another, others, threads, Pace::kInStep);
    for (int64_t i = 0; i < passes; ++i) {
      const ReplicaPass pass = replicas.time_in_step(bench);
      in_step.compute.push_back(pass.compute.device_seconds);
      in_step.update.push_back(pass.update.device_seconds);
    }
    if (replicas.failed()) return std::nullopt;
    Others turns(another, 1, threads, Pace::kByTurns);
    for (int64_t i = 0; i < passes; ++i) by_turns.push_back(turns.time_by_turns(bench).device_seconds);
    if (turns.failed()) return std::nullopt;
  }
  return CrowdSeconds{median(alone.compute),        median(compute_beside),        median(alone.update),
                      median(update_beside),        median(replica_alone.compute), median(in_step.compute),
                      median(replica_alone.update), median(in_step.update),        median(by_turns)};
}

}  // namespace pipewright
