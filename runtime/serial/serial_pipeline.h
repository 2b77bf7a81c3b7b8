// A pipeline of the reference: its stages, and the minibatches of a span, trained one after the other.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/schedule/schedule.h"
#include "runtime/serial/reference.h"
#include "runtime/serial/serial_stage.h"
#include "runtime/stage/loss_shares.h"
#include "runtime/stage/sample_split.h"

namespace pipewright {

/// Does `work`: the forward (samples included) or the backward of a minibatch of the run through all stages,
/// or updates that are due behind it. False: a forward is left out, and with it the rest of the span.
using SerialPerform =
    std::function<bool(ActionKind kind, int64_t minibatch, const std::function<void()>& work)>;

/// Of the run's minibatches it trains some, which it counts itself. Those in its turn (index, index + count,
/// ...) are 0, 1, ...; those that were handed out to it begin in each span with (the first one) mod (the
/// length of a round).
class SerialPipeline {
 public:
  /// `plan`: its own. It is pipeline `index` of `count`.
  SerialPipeline(const Model& model, const Plan& plan, const TrainingRules& rules, int64_t index,
                 int64_t count);

  void restore(const std::function<std::optional<StageState>(size_t)>& start);
  /// What the next plan goes on from, by parameter and buffer (replica 0's).
  struct Carried {
    std::map<std::string, at::Tensor> tensors;
    std::map<std::string, UpdateState> optimizer;
  };
  Carried carried() const;
  void go_on_from(const Carried& carried);

  /// `span`: of the run. `handed_out`: null where it trains those in its turn. `began`: as
  /// SerialStage::begin(), of a run with one pipeline.
  void begin(Span span, const std::vector<int64_t>* handed_out, std::optional<int64_t> began = {});
  /// As this pipeline counts.
  Span span() const { return span_; }
  /// The run's number of its minibatch `own` of the span.
  int64_t in_run(int64_t own) const { return minibatches_.at(static_cast<size_t>(own - span_.first)); }
  /// All weights are there that minibatch k reads, as they will stay.
  bool can_train(int64_t k) const;
  /// Where an update's loss is averaged over labels: before minibatch k of its own is trained. `fields`: of
  /// any minibatch of the run from k's on.
  void count_labels(int64_t k, const std::function<const MinibatchFields&(int64_t)>& fields);
  /// Minibatch k of its own, but for its updates; returns the loss. `fields` are asked for in the forward.
  /// Nothing: `perform` has left the forward out. NotFiniteError with rules.nan_guard.
  std::optional<double> train(int64_t k, const std::function<MinibatchFields()>& fields,
                              const SerialPerform& perform);
  /// Makes the next update of stage s, if one is due and the one before is done with.
  bool update(size_t s);
  /// There are updates that update() has not made.
  bool has_due() const;
  bool is_done() const;
  /// The span has been trained and the pipeline is empty.
  void end();

  SerialStage& stage(size_t s) { return stages_[s]; }
  size_t stage_count() const { return stages_.size(); }
  const TrainingRules& rules() const { return rules_; }
  /// Of the last stage's update that minibatch k of its own, of the span, is part of; before the scale of a
  /// parameter's group.
  double learning_rate_of(int64_t k) const;
  /// Of the last stage's updates since the last call, by the run's minibatch behind the round.
  std::map<int64_t, double> take_gradient_norms();
  /// Weights and buffers. CheckError if copies of a tied parameter differ.
  ReferenceResult result() const;

 private:
  void end_rounds(int64_t k);
  int64_t round_begin(const SerialStage& stage, int64_t k) const;
  LossFields of_loss(const MinibatchFields& fields) const;
  double learning_rate(const SerialStage& stage, int64_t begin, int64_t delay) const;

  Plan plan_;
  TrainingRules rules_;
  int64_t index_, count_;
  Span span_;                         // as this pipeline counts
  std::vector<int64_t> minibatches_;  // of the span, as the run counts, from span_.first on
  std::set<std::string> differentiable_;
  SampleSplit split_;
  LossShares loss_shares_;
  std::map<int64_t, double> labels_;  // by round of the last stage, of this span
  std::vector<SerialStage> stages_;
  std::map<int64_t, double> gradient_norms_;
};

/// Those of a plan, side by side.
using SerialPipelines = std::vector<std::unique_ptr<SerialPipeline>>;

}  // namespace pipewright
