// What a training run reads: which samples are in which minibatch, and how many minibatches there are.
#pragma once

#include <functional>
#include <memory>

#include "runtime/coordinator/run_points.h"
#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "runtime/job/job.h"
#include "runtime/stage/stage_replica.h"

namespace pipewright {

class TrainingData {
 public:
  /// Opens job.run.data. InputError if it does not fit the graph, has less than a minibatch, or the
  /// checkpoint that the job goes on from is of data of another size or of a longer run.
  explicit TrainingData(const Job& job);

  const Dataset& dataset() const { return *data_; }
  /// Of the whole run: nothing of a plan is said.
  const RunLength& length() const { return length_; }
  /// Likewise, with what the plan of a generation (Job::generations) says.
  RunLength length_of(int64_t generation) const;
  /// Minibatch k of the run.
  LoadRequest request(int64_t k) const;
  /// Minibatches that are done before the run begins.
  int64_t first_minibatch() const { return first_; }
  /// The minibatch before which the pipeline was last empty: that one, or an earlier one if it goes on from a
  /// checkpoint with minibatches in flight (pipeline_began() of runtime/checkpoint/checkpoint_state.h).
  int64_t pipeline_began() const;
  /// Epochs whose evaluation is done by then: an epoch that goes on is evaluated again at its end.
  int64_t evaluated_epochs() const;
  TrainingRules rules_of(int64_t generation) const;

 private:
  const Job& job_;
  std::unique_ptr<Dataset> data_;
  Sampler sampler_;
  RunLength length_;
  int64_t first_ = 0;
};

/// run.evaluation_data; null for "". InputError if it does not fit the graph.
std::unique_ptr<Dataset> open_evaluation_data(const Run& run, const Model& model);

}  // namespace pipewright
