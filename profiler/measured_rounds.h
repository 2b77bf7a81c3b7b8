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

/// Of one node, by the driver's record: seconds of its kernels, and their number; an entry per traced pass.
struct KernelSamples {
  std::vector<double> forward, backward, input_part;
  std::vector<double> forward_kernels, backward_kernels;
};

/// Of the weights' updates, an entry per repeat; of a device with a record, what kernels take.
struct UpdateSamples {
  std::vector<double> step, step_in_place, add, copy, divide;

  void add_pass(const WholePass& pass, double Stretch::*seconds = &Stretch::device_seconds);
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
  const UpdateSamples& updates() const { return kernels_.empty() ? updates_ : traced_updates_; }
  /// Per node; empty where no driver keeps a record. Made behind the rounds, in passes of their own: keeping
  /// it slows the host.
  const std::vector<KernelSamples>& kernels() const { return kernels_; }
  /// Between two kernels, where the host is ahead. Of the record.
  double gap_seconds() const;
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
  void trace();
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
  UpdateSamples traced_updates_;
  std::vector<KernelSamples> kernels_;
  std::vector<double> gaps_;
};

}  // namespace pipewright
