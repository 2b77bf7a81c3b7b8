// Where a run writes checkpoints, and so where its spans end: pure functions.
#pragma once

#include <vector>

#include "graph/run.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

/// Minibatches after which every stage has just ended a round, counted from the start of the run: the least
/// common multiple of the stages' rounds. A drain there cuts no round short.
int64_t round_period(const PipelineShape& shape);

/// Minibatches of a run and its parts.
struct RunLength {
  int64_t minibatches = 0;
  int64_t minibatches_per_epoch = 1;
};

/// The first multiple of `period` from `minibatch` on; but not beyond the end of the epoch of minibatch - 1,
/// or the run's.
int64_t next_stop(int64_t minibatch, int64_t period, const RunLength& length);

/// True where a checkpoint is due after minibatch N - 1: at the next_stop() of every multiple of
/// `every_minibatches`, at every so many epochs, and at the end if either is asked for.
bool checkpoint_due(int64_t n, const CheckpointSettings& settings, int64_t period, const RunLength& length);

/// The spans of one epoch from minibatch `from` on: cut where a checkpoint is due. Empty if `from` is behind
/// the epoch.
std::vector<Span> spans_of_epoch(int64_t epoch, int64_t from, const CheckpointSettings& settings,
                                 int64_t period, const RunLength& length);

}  // namespace pipewright
