// Which weight version each minibatch of one replica of a stage reads, span by span. Minibatches are counted
// as the replica's pipeline counts them (runtime/schedule/pipeline_span.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/schedule/schedule.h"
#include "runtime/schedule/versions.h"
#include "runtime/stage/weight_versions.h"

namespace pipewright {

/// One thread.
class StageVersions {
 public:
  /// Trainable weights of versions, by version number.
  using Older = std::map<int64_t, std::vector<at::Tensor>>;
  using Version = std::shared_ptr<const WeightVersion>;
  /// into[i] becomes what trainable weights[i] are expected to be `updates` updates later, when the backward
  /// of the minibatch comes.
  using Predict =
      std::function<void(int64_t minibatch, int64_t updates, const std::vector<at::Tensor>& weights,
                         const std::vector<at::Tensor>& into)>;

  /// Of replica `place` of a stage in its pipeline, which has this schedule and shape. `trainable`: positions
  /// in a version's weights; `copied`: as WeightVersions has it. There is no version before the first
  /// restore().
  StageVersions(std::string schedule, PipelineShape shape, int64_t stage, int64_t place,
                std::vector<size_t> trainable, std::vector<size_t> copied = {});

  /// Of a rule that predicts (WeightRuleFacts::predicts): before the first span.
  void predict_with(Predict predict) { predict_ = std::move(predict); }
  /// From now on, also after a restore(): WeightVersions::keep_places().
  void keep_places();
  /// `weights` is the version after `updates` updates, `older` what minibatches of the next span read beside.
  void restore(std::vector<at::Tensor> weights, int64_t updates, Older older = {});
  /// The same where there are versions already, between spans and without older ones: they are forgotten.
  void replace(std::vector<at::Tensor> weights, int64_t updates);
  /// The next span; the pipeline was last empty before minibatch `began`. `checkpoints`: minibatches of it
  /// before which older_read_in() will be asked.
  void begin(const Span& span, int64_t began, std::set<int64_t> checkpoints = {});
  /// WeightRuleFacts::in_place
  bool in_place() const { return in_place_; }

  const WeightVersions& all() const { return *versions_; }
  const std::vector<at::Tensor>& latest() const { return versions_->latest()->weights; }
  std::vector<at::Tensor> latest_trainable() const;
  /// Made in the span under way, or the last one.
  int64_t updates_of_span() const { return versions_->updates() - first_version_; }
  /// ReadVersions::delay() of a minibatch of the span.
  int64_t delay_of(int64_t minibatch) const { return rule_->delay(minibatch); }
  /// Where the trainable weights of the next version, and their copies, can be written. `next`: the
  /// minibatch behind the round whose update makes it. What a checkpoint before it will want of the latest
  /// version as it is now is copied, if it is changed in place.
  WeightVersions::Room room(int64_t next);
  /// Makes the next version: the latest, but for its trainable weights and their copies, which have been
  /// written to `room`.
  void publish(std::vector<at::Tensor> trainable, WeightVersions::Room room);
  /// WeightVersions::changed()
  void changed() { versions_->changed(); }

  /// For the forward of a minibatch of the span, once. Hold it until its backward has ended.
  Version read(int64_t minibatch);
  /// Around the forward of a minibatch that reads a prediction: meanwhile the latest version holds it.
  void begin_forward(int64_t minibatch);
  void end_forward();
  /// In place: before the backward of a minibatch whose forward was given `version`, which becomes the
  /// latest.
  void turn_back(int64_t minibatch, const WeightVersion& version);
  /// What a minibatch will read whose forward has not come, as it is to read it; null if that version is not
  /// there.
  Version find(int64_t minibatch) const;
  /// Versions before the latest that minibatches [first, end) read and of which the first to read it is one
  /// of this replica: the replicas together have all. `version_of` is asked for such minibatches. Once.
  Older older_read_in(int64_t first, int64_t end, const std::function<Version(int64_t)>& version_of);

 private:
  int64_t number_of(int64_t minibatch) const { return first_version_ + rule_->of(minibatch); }

  const std::string schedule_;
  const PipelineShape shape_;
  const int64_t stage_, place_;
  const StageTurns turns_;
  const std::vector<size_t> trainable_, copied_;
  const bool in_place_;
  bool keeps_places_ = false;
  std::unique_ptr<WeightVersions> versions_;
  Older restored_;                      // for the next span: all weights of each version
  int64_t first_version_ = 0;           // at the span's begin
  std::unique_ptr<ReadVersions> rule_;  // of the span
  Span span_;
  int64_t began_ = 0;              // before which minibatch the pipeline was last empty
  std::set<int64_t> checkpoints_;  // of the span
  Version before_last_;            // in place: a copy of what the last update has changed, or none

  bool wanted_by_checkpoint(int64_t minibatch) const;
  void keep_unread_predictions(int64_t next);
  Predict predict_;
  bool shows_ = false;      // a prediction
  int64_t forwarded_ = -1;  // the last minibatch of the span whose forward has begun
  /// By first reader: predictions that a checkpoint wants, or that come from one.
  std::map<int64_t, std::vector<at::Tensor>> kept_predictions_;
};

}  // namespace pipewright
