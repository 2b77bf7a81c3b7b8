#include "runtime/stage/stage_versions.h"

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
  before_last_.reset();
  first_version_ = versions_->updates();
  rule_ = std::make_unique<ReadVersions>(schedule_, shape_, stage_, span, began);
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

StageVersions::Version StageVersions::read(int64_t minibatch) {
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
