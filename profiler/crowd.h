// What takes longer while others train the same on the other cores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "profiler/bench.h"
#include "profiler/crowd_turns.h"

namespace pipewright {

/// Passes of `bench` take turns: alone, in a pipeline beside `others` more benches, each made by `another`
/// and trained in a thread with `threads` of LibTorch's, all with two minibatches in flight, as one of so
/// many replicas, all of which begin each pass and each update together and wait for the slowest between the
/// two, and by turns with one of them, which makes a pass before each forward and each backward. Alone before
/// and after the others, on one core and on the next, where one thread computes: the references. Turns go on
/// as turns_go_on() says. `repeats`: as many as were worth while before; about as many are made at least, of
/// slow passes fewer. Nothing where there was no memory for the others.
std::optional<CrowdFound> crowd_seconds(Bench& bench, const std::function<std::unique_ptr<Bench>()>& another,
                                        int64_t others, int64_t threads, int64_t repeats,
                                        double least_seconds);

}  // namespace pipewright
