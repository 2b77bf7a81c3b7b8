// The training of a plan by the reference, span by span, driven by others: train_serially() (reference.h) and
// `train --emulate` (runtime/generation/emulated_plan.h).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "runtime/serial/reference.h"
#include "runtime/serial/serial_ties.h"

namespace pipewright {

/// Minibatches are counted as the run counts them.
struct SerialHooks {
  /// Asked for in the order of minibatches, each once.
  std::function<MinibatchFields(int64_t minibatch)> fields;
  SerialPerform perform;  ///< empty: all is done
  /// The minibatch is trained, and of its pipeline all updates that can be made are made.
  std::function<void(int64_t minibatch, double loss)> trained;
};

class SerialTraining {
 public:
  /// Of `part` all but its spans, which are those that train() is asked for; lock-step pairs are drawn for
  /// part.spans. Starts from the initialisers of the model.
  SerialTraining(const Model& model, PlanSpans part, const TrainingRules& rules_of_run);

  /// `start`: as train_serially() has it.
  void restore(const std::function<std::optional<StageState>(size_t stage)>& start);
  void go_on_from(const SerialTraining& before);
  /// Trains the span from an empty pipeline, or from where it was empty before minibatch `began`
  /// (SerialStage::begin). Returns the minibatch before which it ended: where a forward was left out, of a
  /// plan with one pipeline, else the span's end. InputError if groups or minibatches cannot be those of this
  /// training.
  int64_t train(Span span, const SerialHooks& hooks, std::optional<int64_t> began = {});
  /// Behind a span: replicas are made equal, as a drain does.
  void drain();

  /// Since the last call: ReferenceResult::gradient_norms.
  std::map<int64_t, double> take_gradient_norms();
  /// But for losses and norms. CheckError if copies of a tied parameter, or pipelines, differ.
  ReferenceResult result() const;
  /// The plan's only one, or the first of several.
  SerialPipeline& pipeline() { return *pipelines_.front(); }

 private:
  const PlanSpans part_;
  const TrainingRules rules_;
  SerialPipelines pipelines_;
  std::unique_ptr<SerialTies> ties_;
};

}  // namespace pipewright
