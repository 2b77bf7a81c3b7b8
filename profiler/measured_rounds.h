// A part of a model, measured again and again: rounds that warm up, then rounds that count.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "profiler/bench.h"
#include "profiler/repeats.h"
#include "profiler/settling.h"

namespace pipewright {

/// Times of one node, or of all in one piece, an entry per repeat.
struct Samples {
  std::vector<double> forward, backward, input_part;
  std::vector<double> forward_launch, backward_launch;  // the host's
};

/// Of the weights' updates, an entry per repeat.
struct UpdateSamples {
  std::vector<double> step, step_in_place, add, copy, divide;

  void add_pass(const WholePass& pass);
};

struct RoundOptions {
  int64_t warmup = 1;        ///< rounds thrown away, at least
  bool settles = false;      ///< as many more as profiler/settling.h says
  int64_t repeats = 0;       ///< rounds that count; 0: as many as profiler/repeats.h says
  double most_seconds = 20;  ///< then
  /// Called three times a round with the share done, 0..1.
  std::function<void(double done)> progress;
};

/// The three ways to look at a training pass take turns in each round, so that a slow moment of the machine
/// does not hit one of them alone.
class MeasuredRounds {
 public:
  /// Borrows the bench.
  MeasuredRounds(Bench& bench, RoundOptions options);

  void run();

  int64_t warmup() const { return warmup_; }
  int64_t repeats() const { return repeats_; }
  Settling settled() const { return settled_; }
  const Samples& node(size_t i) const { return nodes_[i]; }
  const Samples& whole() const { return whole_; }
  const UpdateSamples& updates() const { return updates_; }
  /// Forward of all nodes, then backward.
  RepeatSeries node_series() const;

 private:
  struct Round {
    NodesPass nodes;
    WholePass whole;
    std::vector<Stretch> input_parts;
  };

  void warm_up();
  Round measure_round();
  void take(const Round& round);
  bool goes_on(double elapsed_seconds) const;
  void report(int third) const;

  using Clock = std::chrono::steady_clock;

  Bench& bench_;
  const RoundOptions options_;
  const Clock::time_point start_ = Clock::now();
  int64_t warmup_, repeats_;  // warmup_: at least, until the device has settled
  int64_t rounds_ = 0;
  Settling settled_ = Settling::kSettled;
  std::vector<Samples> nodes_;
  Samples whole_;
  UpdateSamples updates_;
};

}  // namespace pipewright
