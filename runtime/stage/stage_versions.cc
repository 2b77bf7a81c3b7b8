#include "runtime/stage/stage_versions.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "runtime/update/ownership.h"

namespace pipewright {

StageVersions::StageVersions(std::string schedule, PipelineShape shape, int64_t stage, int64_t place,
                             std::vector<size_t> trainable, std::vector<size_t> copied)
    : schedule_(std::move(schedule)),
      shape_(std::move(shape)),
      stage_(stage),
      place_(place),
      turns_(shape_, stage),
      trainable_(std::move(trainable)),
      copied_(std::move(copied)),
      in_place_(facts_of(shape_.weights).in_place) {}

void StageVersions::keep_places() {
  keeps_places_ = true;
  if (versions_) versions_->keep_places();
}

void StageVersions::restore(std::vector<at::Tensor> weights, int64_t updates, Older older) {
  for (const size_t i : trainable_) weights[i].requires_grad_(true);
  versions_ = std::make_unique<WeightVersions>(std::move(weights), updates, copied_, in_place_);
  if (keeps_places_) versions_->keep_places();
  if (facts_of(shape_.weights).predicts) {
    kept_predictions_ = std::move(older);
    return;
  }
  for (auto& [number, trainable] : older) {
    PW_CHECK_EQ(trainable.size(), trainable_.size());
    std::vector<at::Tensor>& version = restored_[number] = latest();
    for (size_t i = 0; i < trainable.size(); ++i) version[trainable_[i]] = trainable[i].requires_grad_(true);
  }
}

void StageVersions::replace(std::vector<at::Tensor> weights, int64_t updates) {
  for (const size_t i : trainable_) weights[i].requires_grad_(true);
  versions_->replace(std::move(weights), updates);
}

void StageVersions::begin(const Span& span, int64_t began, std::set<int64_t> checkpoints) {
  if (in_place_ && !std::all_of(trainable_.begin(), trainable_.end(),
                                [this](size_t i) { return unshared(latest()[i]); })) {
    std::vector<at::Tensor> own = latest();  // somebody else holds them, who is not to see updates
    for (const size_t i : trainable_) own[i] = own[i].detach().clone();
    replace(std::move(own), versions_->updates());
  }
  checkpoints_ = std::move(checkpoints);
  began_ = began;
  forwarded_ = span.first - 1;
  span_ = span;
  before_last_.reset();
  first_version_ = versions_->updates();
  rule_ = std::make_unique<ReadVersions>(schedule_, shape_, stage_, span, began);
  if (facts_of(shape_.weights).predicts) {
    if (began == span.first) kept_predictions_.clear();
    return;
  }
  // Versions are kept for the forwards that will read them, and no longer.
  std::map<int64_t, int64_t> readers;
  for (const int64_t minibatch : turns_.minibatches_of(place_, span)) ++readers[number_of(minibatch)];
  versions_->expect(std::move(readers), std::exchange(restored_, {}));
}

std::vector<at::Tensor> StageVersions::latest_trainable() const {
  std::vector<at::Tensor> trainable;
  for (const size_t i : trainable_) trainable.push_back(latest()[i]);
  return trainable;
}

WeightVersions::Room StageVersions::room(int64_t next) {
  WeightVersions::Room room = versions_->room(trainable_);
  if (facts_of(shape_.weights).predicts) {
    keep_unread_predictions(next);
    return room;
  }
  before_last_.reset();
  if (!room.in_place || checkpoints_.count(next) == 0 || turns_.replica_of(next) != place_) return room;
  auto before = std::make_shared<WeightVersion>();
  before->number = versions_->updates();
  before->weights = latest();
  for (const size_t i : trainable_) before->weights[i] = latest()[i].detach().clone();
  before_last_ = std::move(before);
  return room;
}

void StageVersions::publish(std::vector<at::Tensor> trainable, WeightVersions::Room room) {
  WeightVersion next = *versions_->latest();
  for (size_t i = 0; i < trainable.size(); ++i) {
    if (!room.in_place) next.weights[trainable_[i]] = std::move(trainable[i]);
    if (room.copies[i].defined()) next.copies[trainable_[i]] = std::move(room.copies[i]);
  }
  if (room.in_place) return versions_->publish_in_place(std::move(next.copies));
  versions_->publish(std::move(next.weights), std::move(next.copies));
}

bool StageVersions::wanted_by_checkpoint(int64_t minibatch) const {
  const auto behind = checkpoints_.upper_bound(minibatch);
  return std::any_of(checkpoints_.begin(), behind,
                     [&](int64_t n) { return rule_->of(minibatch) < rule_->at_backward(n); });
}

void StageVersions::begin_forward(int64_t minibatch) {
  if (!facts_of(shape_.weights).predicts) return;
  forwarded_ = std::max(forwarded_, minibatch);
  if (!rule_->predicted(minibatch)) return;
  const int64_t reader = rule_->first_reader(minibatch);
  const auto kept = kept_predictions_.find(reader);
  versions_->show(
      trainable_, [&](const std::vector<at::Tensor>& current, const std::vector<at::Tensor>& shown) {
        if (rule_->of(minibatch) >= 0) {
          PW_CHECK_EQ(updates_of_span(), rule_->of(minibatch));
          return predict_(minibatch, rule_->at_backward(minibatch) - rule_->of(minibatch), current, shown);
        }
        PW_CHECK(kept != kept_predictions_.end(), "no prediction for minibatch " << minibatch);
        for (size_t i = 0; i < shown.size(); ++i) shown[i].copy_(kept->second[i]);
      });
  shows_ = true;
  if (reader == minibatch && kept == kept_predictions_.end() && wanted_by_checkpoint(minibatch)) {
    for (const size_t i : trainable_) kept_predictions_[minibatch].push_back(latest()[i].detach().clone());
  }
  std::erase_if(kept_predictions_,
                [&](const auto& each) { return each.first < reader && !wanted_by_checkpoint(each.first); });
}

void StageVersions::end_forward() {
  if (std::exchange(shows_, false)) versions_->hide(trainable_);
}

// Of the latest version, which is about to change: the span is ending early, and a checkpoint there has what
// further minibatches would have read.
void StageVersions::keep_unread_predictions(int64_t next) {
  for (int64_t k = std::max(forwarded_ + 1, next); k < span_.end() && rule_->of(k) <= updates_of_span();
       ++k) {
    const bool own = turns_.replica_of(k) == place_ && rule_->first_reader(k) == k;
    if (!own || !rule_->predicted(k) || rule_->of(k) != updates_of_span()) continue;
    std::vector<at::Tensor>& kept = kept_predictions_[k];
    const std::vector<at::Tensor> current = latest_trainable();
    for (const at::Tensor& weight : current) kept.push_back(at::empty_like(weight.variable_data()));
    predict_(k, rule_->at_backward(k) - rule_->of(k), current, kept);
  }
}

StageVersions::Version StageVersions::read(int64_t minibatch) {
  if (facts_of(shape_.weights).predicts) return versions_->latest();
  return versions_->read(number_of(minibatch));
}

void StageVersions::turn_back(int64_t minibatch, const WeightVersion& version) {
  versions_->bring_up_to_date(version);
  PW_CHECK_EQ(version.number, first_version_ + rule_->at_backward(minibatch));
}

StageVersions::Version StageVersions::find(int64_t minibatch) const {
  const int64_t number = number_of(minibatch);
  return before_last_ && before_last_->number == number ? before_last_ : versions_->find(number);
}

StageVersions::Older StageVersions::older_read_in(int64_t first, int64_t end,
                                                  const std::function<Version(int64_t)>& version_of) {
  Older older;
  if (facts_of(shape_.weights).predicts) {
    const ReadVersions read(schedule_, shape_, stage_, {first, end - first}, began_);
    for (int64_t k = first; k < end && read.of(k) < 0; ++k) {
      if (read.first_reader(k) != k || turns_.replica_of(k) != place_) continue;
      const auto kept = kept_predictions_.find(k);
      PW_CHECK(kept != kept_predictions_.end(), "no prediction for minibatch " << k);
      older[k] = kept->second;
    }
    checkpoints_.erase(first);
    return older;
  }
  for (int64_t minibatch = first; minibatch < end; ++minibatch) {
    const int64_t number = number_of(minibatch);
    if (number >= versions_->updates()) break;
    const bool first_reader = minibatch == first || number != number_of(minibatch - 1);
    if (!first_reader || turns_.replica_of(minibatch) != place_) continue;
    const Version version = version_of(minibatch);
    std::vector<at::Tensor>& trainable = older[number];  // may stay empty
    for (const size_t i : trainable_) trainable.push_back(version->weights[i]);
  }
  before_last_.reset();
  return older;
}

}  // namespace pipewright
