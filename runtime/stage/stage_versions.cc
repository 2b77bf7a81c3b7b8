#include "runtime/stage/stage_versions.h"

#include <utility>

#include "graph/error.h"

namespace pipewright {

StageVersions::StageVersions(std::string schedule, PipelineShape shape, int64_t stage, int64_t place,
                             std::vector<size_t> trainable, std::vector<size_t> copied)
    : schedule_(std::move(schedule)),
      shape_(std::move(shape)),
      stage_(stage),
      place_(place),
      turns_(shape_, stage),
      trainable_(std::move(trainable)),
      copied_(std::move(copied)) {}

void StageVersions::keep_places() {
  keeps_places_ = true;
  if (versions_) versions_->keep_places();
}

void StageVersions::restore(std::vector<at::Tensor> weights, int64_t updates, Older older) {
  for (const size_t i : trainable_) weights[i].requires_grad_(true);
  versions_ = std::make_unique<WeightVersions>(std::move(weights), updates, copied_);
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

void StageVersions::begin(const Span& span, int64_t began) {
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

void StageVersions::publish(std::vector<at::Tensor> trainable, std::vector<at::Tensor> copies) {
  WeightVersion next = *versions_->latest();
  for (size_t i = 0; i < trainable.size(); ++i) {
    next.weights[trainable_[i]] = std::move(trainable[i]);
    if (copies[i].defined()) next.copies[trainable_[i]] = std::move(copies[i]);
  }
  versions_->publish(std::move(next.weights), std::move(next.copies));
}

StageVersions::Version StageVersions::read(int64_t minibatch) {
  return versions_->read(number_of(minibatch));
}

StageVersions::Older StageVersions::older_read_in(int64_t first, int64_t end,
                                                  const std::function<Version(int64_t)>& version_of) const {
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
  return older;
}

}  // namespace pipewright
