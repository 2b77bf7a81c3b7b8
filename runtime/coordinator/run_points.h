// Where a run writes checkpoints: pure functions.
#pragma once

#include <limits>
#include <vector>

#include "graph/run.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

/// Minibatches after which every stage has just ended a round, counted from the start of the run: the least
/// common multiple of the stages' rounds.
int64_t round_period(const PipelineShape& shape);

/// Minibatches of a run and its parts, and of the plan in force: multiples of an interval that lie with
/// another plan are the business of that one.
struct RunLength {
  int64_t minibatches = 0;
  int64_t minibatches_per_epoch = 1;
  int64_t evaluate_every = 0;  ///< beside the evaluations at the ends of epochs; 0 = none
  int64_t drain_every = 0;     ///< likewise: the pipeline drains there, where checkpoints need that
  int64_t decide_every = 0;    ///< likewise, where a policy decides (runtime/job/adapt.h)
  int64_t period = 1;          ///< round_period() of the plan, for these evaluations
  int64_t plan_begin = 0;      ///< the first minibatch of the plan
  int64_t plan_end =
      std::numeric_limits<int64_t>::max();  ///< of the next plan; behind the run: there is none
};

/// The first multiple of `period` from `minibatch` on; but not beyond the end of the epoch of minibatch - 1,
/// or the run's, or the plan's.
int64_t next_stop(int64_t minibatch, int64_t period, const RunLength& length);

/// Where a pipeline can drain that nobody knew would, if `last_started` is the last minibatch that the first
/// stage has begun: the next_stop() before which every message comes that a rank has asked for.
int64_t unplanned_stop(int64_t last_started, const PipelineShape& shape, const RunLength& length);

/// True where a checkpoint is due after minibatch N - 1: at the next_stop() of every multiple of
/// `every_minibatches`, at every so many epochs, and at the end if either is asked for.
bool checkpoint_due(int64_t n, const CheckpointSettings& settings, int64_t period, const RunLength& length);

/// True where the model is evaluated after minibatch n - 1, within an epoch: at the next_stop() of every
/// multiple of `evaluate_every`, but for the ends of epochs and the run's.
bool evaluation_within_epoch(int64_t n, const RunLength& length);

/// True where a policy decides after minibatch n - 1, the pipeline being empty: at the next_stop() of
/// every multiple of `every` minibatches; 0: at the ends of epochs.
bool decision_due(int64_t n, int64_t every, const RunLength& length);

/// What is trained from minibatch `from` on in one go: up to the next evaluation, drain, the end of its
/// epoch, of the run or of the plan. There the pipeline drains.
Span span_from(int64_t from, const RunLength& length);

/// The minibatches within the span, behind its first, before which a checkpoint is due: each begins a round
/// of every stage. One at the end of the span is not among them.
std::vector<int64_t> checkpoints_within(Span span, const CheckpointSettings& settings, int64_t period,
                                        const RunLength& length);

}  // namespace pipewright
