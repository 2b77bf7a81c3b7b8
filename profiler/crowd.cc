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
#include "interference/core_features.h"
#include "profiler/core_affinity.h"
#include "profiler/other_load.h"
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
  explicit Replicas(size_t count)
      : barrier_(static_cast<ptrdiff_t>(count)), gradients_(count), seconds_(count) {}

  void meet() { barrier_.arrive_and_wait(); }
  /// Of what each replica took, the longest, when all are there.
  double slowest(size_t replica, double own_seconds) {
    seconds_[replica] = own_seconds;
    meet();
    return *std::max_element(seconds_.begin(), seconds_.end());  // sum() lies between this and the next one
  }
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
  std::vector<double> seconds_;                     // by replica
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
        [&](double own_seconds) { return replicas_.slowest(replica, own_seconds); },
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

/// Passes alone, for the references: `count` of them on one core.
class Alone {
 public:
  /// `moves`: to the next core of the process each time.
  Alone(Bench& bench, bool moves)
      : bench_(bench), cores_(moves ? cores_of_process() : std::vector<int64_t>()) {}

  /// Adds to `passes` those from `begin` on, and their median to the references.
  void take(size_t begin, size_t end, CrowdTurn& turn) {
    std::optional<CoreAffinity> core;
    if (cores_.size() > 1) {
      core.emplace(cores_[next_++ % cores_.size()]);
      bench_.train();  // what it reads comes to this core's caches
    }
    std::vector<double> seconds;
    for (size_t i = begin; i < end; ++i) {
      const WholePass pass = bench_.time_whole();
      CrowdSeconds& taken = turn.passes[i];
      taken.compute_alone = pass.forward.device_seconds + pass.backward.device_seconds;
      taken.clock_alone = pass.forward.host_seconds + pass.backward.host_seconds;
      taken.update_alone = pass.step_in_place.device_seconds;
      taken.replica_compute_alone = taken.compute_alone + pass.gradient_copy.device_seconds;
      taken.replica_update_alone = pass.gradient_divide.device_seconds + taken.update_alone;
      seconds.push_back(taken.compute_alone);
    }
    turn.references.push_back(median(seconds));
  }

 private:
  Bench& bench_;
  const std::vector<int64_t> cores_;
  size_t next_ = 0;
};

}  // namespace

std::optional<CrowdFound> crowd_seconds(Bench& bench, const std::function<std::unique_ptr<Bench>()>& another,
                                        int64_t others, int64_t threads, int64_t repeats,
                                        double least_seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kTurns = 3;
  constexpr double kSecondsOfTurn = 1;  // of each pace, about: slow passes scatter less
  const WholePass first = bench.time_whole();
  const double pass_seconds = std::max(1e-6, first.forward.device_seconds + first.backward.device_seconds);
  const auto passes = static_cast<size_t>(std::clamp<int64_t>(
      std::min(repeats / kTurns, static_cast<int64_t>(kSecondsOfTurn / pass_seconds)), 2, 6));
  Alone alone(bench, threads == 1);
  const Clock::time_point start = Clock::now();
  std::vector<CrowdTurn> turns;
  while (turns_go_on(turns, std::chrono::duration<double>(Clock::now() - start).count(), least_seconds)) {
    const OtherLoad load;
    CrowdTurn turn;
    turn.passes.resize(passes);
    alone.take(0, passes / 2, turn);
    {
      const Others crowd(another, others, threads, Pace::kFree);
      Bench::InFlight in_flight;
      for (CrowdSeconds& pass : turn.passes) {
        pass.update_beside = bench.time_whole().step_in_place.device_seconds;
        const Stretch beside = bench.time_in_pipeline(in_flight);
        pass.compute_beside = beside.device_seconds;
        pass.clock_beside = beside.host_seconds;
      }
      if (crowd.failed()) return std::nullopt;
    }
    {
      Others replicas(another, others, threads, Pace::kInStep);
      for (CrowdSeconds& pass : turn.passes) {
        const ReplicaPass in_step = replicas.time_in_step(bench);
        pass.replica_compute_in_step = in_step.compute_seconds;
        pass.replica_update_in_step = in_step.update_seconds;
      }
      if (replicas.failed()) return std::nullopt;
    }
    {
      Others by_turns(another, 1, threads, Pace::kByTurns);
      for (CrowdSeconds& pass : turn.passes)
        pass.compute_by_turns = by_turns.time_by_turns(bench).device_seconds;
      if (by_turns.failed()) return std::nullopt;
    }
    alone.take(passes / 2, passes, turn);
    turn.other_cores = load.cores();
    turns.push_back(std::move(turn));
  }
  return judged(turns);
}

}  // namespace pipewright
