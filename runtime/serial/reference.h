// Pipeline training written down serially: one process, one minibatch after the other, no schedule, no
// transport, no worker. It is docs/semantics.md in the plainest way; the runtime must end with the same bits.
// `verify` and the tests compare with it, `train --emulate` trains by it (serial_training.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "models/definition/model.h"
#include "runtime/groups/group_log.h"
#include "runtime/stage/stage_replica.h"

namespace pipewright {

/// Fields of a minibatch by name.
using MinibatchFields = std::map<std::string, at::Tensor>;

struct ReferenceResult {
  std::map<std::string, at::Tensor> weights;  ///< by parameter, after the last update
  /// By stage, by replica, by buffer.
  std::vector<std::vector<std::map<std::string, at::Tensor>>> buffers;
  std::vector<double> losses;  ///< by minibatch
  /// What the optimizer keeps, by slot and parameter. Of pipelines side by side, which drain, all the same.
  std::map<std::string, std::map<std::string, at::Tensor>> slots;
  /// Where gradients are clipped: their norms before that, of the last stage's updates, by the minibatch
  /// behind the round. Of every pipeline where rules.sync lets them train by themselves.
  std::map<int64_t, double> gradient_norms;
};

/// Trains the spans one after the other under any plan that fits the graph and its schedule. Every weight
/// version that a later minibatch of the span reads is kept. Copies of tied parameters must have equal bits
/// after every update: CheckError if they have not. `start`: the state that a stage begins with; nothing
/// where the model's initialisers say it. Its tensors stay as they are.
ReferenceResult train_serially(const Model& model, const Plan& plan, const TrainingRules& rules,
                               const std::vector<Span>& spans,
                               const std::function<MinibatchFields(int64_t minibatch)>& fields,
                               const std::function<std::optional<StageState>(size_t stage)>& start = nullptr);

/// What one plan trains of a run whose plan changes; its frozen layers are not trained.
struct PlanSpans {
  Plan plan;
  std::vector<Span> spans;
  /// Where pipelines average their weights in groups: which ones, by stage, in the order of the whole part.
  GroupsByStage groups = {};
  /// Where minibatches are handed out: which ones to whom. What lies behind a span's end is left out.
  PartsBySpan minibatches = {};
  /// Where they meet in pairs at any time.
  MeetingsBySpan meetings = {};
  /// Other than the rules say (graph/plan_changes.h).
  std::optional<int64_t> gradient_accumulation = {};
  double learning_rate_scale = 1;
};

/// The same under several plans, one after the other: each goes on from the weights, buffers (replica 0's)
/// and optimizer state of the one before, by name. `start` is of the first plan's stages. InputError if the
/// groups or minibatches cannot be those of this training. Minibatches are asked for in their order.
ReferenceResult train_serially(const Model& model, const std::vector<PlanSpans>& parts,
                               const TrainingRules& rules,
                               const std::function<MinibatchFields(int64_t minibatch)>& fields,
                               const std::function<std::optional<StageState>(size_t stage)>& start = nullptr);

/// The plan of one device that computes the same as `plan` but for the order of sums: one stage that updates
/// after as many minibatches. Empty name of the schedule: there is none, because the plan's rule makes
/// gradients older, its stages update after different numbers of minibatches, they clip on their own, or
/// replicas are not held together at every update.
Plan one_device_plan(const Model& model, const Plan& plan, const TrainingRules& rules);

}  // namespace pipewright
