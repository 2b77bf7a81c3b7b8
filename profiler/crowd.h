// What takes longer while others train the same on the other cores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "graph/profile.h"
#include "profiler/bench.h"

namespace pipewright {

/// Medians of a pass: alone, beside others, in step with others, and by turns with another.
struct CrowdSeconds {
  double compute_alone = 0, compute_beside = 0;  ///< forward and backward; beside: Bench::time_in_pipeline()
  double update_alone = 0, update_beside = 0;    ///< in place
  /// As a replica (Bench::time_replica()).
  double replica_compute_alone = 0, replica_compute_in_step = 0;
  double replica_update_alone = 0, replica_update_in_step = 0;
  double compute_by_turns = 0;  ///< Bench::time_by_turns()

  CrowdSeconds& operator+=(const CrowdSeconds& other);
  /// Factors of 1 or more.
  ProfiledCrowd factors(int64_t ranks) const;
};

/// Passes of `bench` take turns: alone, in a pipeline beside `others` more benches, each made by `another`
/// and trained in a thread with `threads` of LibTorch's, all with two minibatches in flight, as one of so
/// many replicas, all of which begin each pass and each update together and wait for the slowest between the
/// two, and by turns with one of them, which makes a pass before each forward and each backward. What the
/// machine does meanwhile hits all of them, and turns go on for `least_seconds`, so that one slow moment of
/// it is not all that is seen. `repeats`: as many as were worth while before; about as many are made at
/// least, of slow passes fewer. Nothing where there was no memory for the others.
std::optional<CrowdSeconds> crowd_seconds(Bench& bench,
                                          const std::function<std::unique_ptr<Bench>()>& another,
                                          int64_t others, int64_t threads, int64_t repeats,
                                          double least_seconds);

}  // namespace pipewright
