// What there is to see of a run, without where it comes from.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/watch/loss_series.h"

namespace pipewright {

struct RankView {
  int64_t rank = 0;
  std::vector<int64_t> stages;   ///< empty: it has no part in the plan, or that is not known
  std::string operation;         ///< "" = between two, or not told
  double operation_seconds = 0;  ///< in it
  std::optional<int64_t> minibatch;
  std::optional<double> samples_per_second;  ///< its part of its stage's
  std::optional<double> waiting;             ///< part of the time, 0..1
  int64_t memory_bytes = 0;                  ///< of tensors, at most; 0: not told
  int64_t predicted_memory_bytes = 0;        ///< 0: the plan does not say
  double slowdown = 1;                       ///< against when the run was quiet
};

struct RunView {
  enum class Phase {
    kAbsent,    ///< nothing of a run is there
    kStarting,  ///< a process holds the folder, and nothing was trained yet
    kRunning,
    kDone,
    kInterrupted,
    kFailed,
  };
  Phase phase = Phase::kAbsent;
  std::string why;  ///< of a run that has failed: what is known

  std::string folder;
  std::string model, plan;  ///< SPEC; "2-1, 1f1b, stash"
  int64_t done = 0;         ///< minibatches
  int64_t minibatches = 0;  ///< of the whole run; 0: not known
  int64_t epoch = 0;        ///< from 0 on
  bool evaluating = false;
  double loss = std::nan("");           ///< mean of the last minibatches'
  double learning_rate = std::nan("");  ///< NaN: not told
  // Of the last minibatches; 0: not known. Of a run that has ended the first is over its wall time, the
  // second its steady state.
  double samples_per_second = 0;
  double minibatch_seconds = 0;
  double predicted_minibatch_seconds = 0;  ///< 0: the plan does not say
  double wall_seconds = 0;                 ///< of a run that has ended
  LossSeries losses;
  std::vector<std::string> events;  ///< the last ones, oldest first
  int64_t told_events = 0;          ///< with those before
  std::vector<RankView> ranks;      ///< ascending

  bool has_ended() const { return phase >= Phase::kDone; }
};

}  // namespace pipewright
