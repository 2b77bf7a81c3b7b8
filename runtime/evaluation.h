// The model on the evaluation data, between two spans of training (docs/semantics.md, "Evaluation").
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/job.h"
#include "runtime/stage_loaders.h"
#include "runtime/worker.h"

namespace pipewright {

/// Of one minibatch, on the rank that computes the loss.
struct EvaluatedMinibatch {
  int64_t minibatch = 0;
  double loss = 0;
  int64_t correct = 0;
  int64_t scored = 0;  ///< labels that had a score
  int64_t samples = 0;
};

/// One rank's part in evaluations. Borrows all it is given.
class Evaluation {
 public:
  Evaluation(const Job& job, const Dataset& data, Worker& worker);

  /// Samples that are evaluated: all, or, of a model that takes whole minibatches only (Model::fixed_batch),
  /// those that fill some.
  static int64_t samples(const Job& job, const Dataset& data);

  /// All these samples once. The pipeline has drained; so it has at the end. All ranks call it.
  /// `hooks.before` and `hooks.after` are called, the others are not.
  void run(WorkerHooks hooks, LoadObserver loading,
           const std::function<void(const EvaluatedMinibatch&)>& report);

 private:
  const Job& job_;
  const Dataset& data_;
  Worker& worker_;
  std::vector<std::pair<int64_t, std::unique_ptr<StageProgram>>> full_, rest_;  // by stage of this rank
};

}  // namespace pipewright
