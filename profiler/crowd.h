// What takes longer while others train the same on the other cores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "profiler/bench.h"

namespace pipewright {

/// Medians of a pass, alone and beside the others.
struct CrowdSeconds {
  double compute_alone = 0, compute_beside = 0;
  double update_alone = 0, update_beside = 0;

  CrowdSeconds& operator+=(const CrowdSeconds& other);
};

/// Passes of `bench` take turns, alone and beside `others` more benches, each made by `another` and trained
/// in a thread with `threads` of LibTorch's: what the machine does meanwhile hits both. `repeats`: as many as
/// were worth while before; about as many are made. Nothing where there was no memory for the others.
std::optional<CrowdSeconds> crowd_seconds(Bench& bench,
                                          const std::function<std::unique_ptr<Bench>()>& another,
                                          int64_t others, int64_t threads, int64_t repeats);

}  // namespace pipewright
