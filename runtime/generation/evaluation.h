// The model on the evaluation data, between two spans of training (docs/semantics.md, "Evaluation").
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "graph/plan.h"
#include "graph/run.h"
#include "models/definition/model.h"
#include "models/definition/scoring.h"
#include "models/run/loss_terms.h"
#include "runtime/data/dataset.h"
#include "runtime/generation/judged.h"
#include "runtime/messages/evaluated_minibatch.h"
#include "runtime/worker/stage_loaders.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// May put another tensor of the same type in the place of a field of minibatch k.
using FieldOverride = std::function<void(int64_t k, const std::string& field, at::Tensor& value)>;

/// One rank's part in evaluations. Borrows all it is given.
class Evaluation {
 public:
  /// `plan`: the worker's.
  Evaluation(const Run& run, const Model& model, const Plan& plan, const Dataset& data, Worker& worker);

  /// Samples that are evaluated: all, or, of a model that takes whole minibatches only (Model::fixed_batch),
  /// those that fill some.
  static int64_t samples(const Model& model, int64_t batch_size, const Dataset& data);

  int64_t minibatches() const;
  /// Samples of minibatch k.
  int64_t size_of(int64_t minibatch) const;
  /// The rank that computes the loss of minibatch k.
  int64_t rank_of(int64_t minibatch) const;

  /// All these samples once. The pipeline has drained; so it has at the end. All ranks call it.
  /// `hooks.observers` are told of all actions, the others are not called. `report` is called for each
  /// minibatch on its rank_of(), with its scores (graph.outputs[1]), undefined if the model has none.
  void run(WorkerHooks hooks, Loading loading,
           const std::function<void(const EvaluatedMinibatch&, const at::Tensor& scores)>& report,
           const FieldOverride& override = {});

 private:
  /// The model for evaluation, which hands out what it is judged by, too.
  Graph judged_graph(const Graph& training);
  /// On the CPU: of what a minibatch hands out behind the loss, or a parameter or buffer as it is now.
  at::Tensor tensor_of(const std::string& name, const std::vector<at::Tensor>& handed_out) const;

  const Run& run_;
  const Model& model_;
  const Plan& plan_;
  const PipelineShape shape_;
  const Dataset& data_;
  Worker& worker_;
  const std::optional<Scoring> scoring_;
  const LossTerms loss_terms_;
  std::vector<std::string> judged_;  // what the graph hands out behind the model's own outputs
  std::vector<std::pair<int64_t, std::unique_ptr<StageProgram>>> full_, rest_;  // by stage of this rank
};

}  // namespace pipewright
