#include "runtime/checkpoint/checkpoint_series.h"

#include <utility>

namespace pipewright {

CheckpointSeries::CheckpointSeries(Settings settings)
    : settings_(std::move(settings)),
      writer_(CheckpointWriter::Settings{settings_.folder, settings_.points.versions == "exact",
                                         settings_.post, settings_.check, settings_.kept}) {}

void CheckpointSeries::keep() {
  keeper_ = std::make_unique<CheckpointKeeper>(settings_.folder, settings_.points.keep, /*spares=*/settings_.kept);
}

void CheckpointSeries::begin(const std::function<CheckpointManifest()>& manifest) {
  if (!keeper_) return;
  if (keeper_->pending() >= settings_.most_pending) writer_.wait();  // a part of it may be this rank's
  while (keeper_->pending() >= settings_.most_pending) {
    if (const auto folder = keeper_->wait(settings_.check)) last_ = *folder;
  }
  keeper_->begin(manifest());
}

void CheckpointSeries::advance() {
  writer_.poll();
  if (!keeper_) return;
  if (const auto folder = keeper_->poll()) last_ = *folder;
}

void CheckpointSeries::complete() {
  writer_.wait();
  while (keeper_ && keeper_->pending() > 0) {
    if (const auto folder = keeper_->wait(settings_.check)) last_ = *folder;
  }
}

void CheckpointSeries::settle() noexcept {
  if (keeper_) keeper_->settle();
}

}  // namespace pipewright
