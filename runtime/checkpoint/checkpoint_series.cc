#include "runtime/checkpoint/checkpoint_series.h"

#include <utility>

namespace pipewright {

CheckpointSeries::CheckpointSeries(Settings settings)
    : settings_(std::move(settings)),
      writer_(CheckpointWriter::Settings{settings_.folder, settings_.points.versions == "exact",
                                         settings_.post, [this] { check(); }, settings_.kept,
                                         [this](int64_t n, const std::vector<CheckpointFile>& files) {
                                           if (copies_) copies_->copy(n, files);
                                         }}) {}

// A copy that is under way would be waited for.
CheckpointSeries::~CheckpointSeries() {
  if (copies_) copies_->abandon();
}

void CheckpointSeries::check() const {
  settings_.check();
  if (copies_) copies_->check();
}

void CheckpointSeries::keep() {
  keeper_ =
      std::make_unique<CheckpointKeeper>(settings_.folder, settings_.points.keep, /*spares=*/settings_.kept);
}

void CheckpointSeries::begin_copies(std::unique_ptr<StateCopies> copies) {
  copies_ = std::move(copies);
  if (keeper_) {
    keeper_->share(
        [this](int64_t n, const std::filesystem::path& manifest) { copies_->tell_whole(n, manifest); });
  }
}

void CheckpointSeries::end_copies() {
  if (!copies_) return;
  complete();
  copies_->end(settings_.check);
  if (keeper_) keeper_->share({});
  copies_.reset();
}

void CheckpointSeries::settle_writer() noexcept {
  if (copies_) copies_->abandon();
  writer_.settle();
}

void CheckpointSeries::begin(const std::function<CheckpointManifest()>& manifest) {
  if (!keeper_) return;
  if (keeper_->pending() >= settings_.most_pending) writer_.wait();  // a part of it may be this rank's
  while (keeper_->pending() >= settings_.most_pending) {
    if (const auto folder = keeper_->wait([this] { check(); })) last_ = *folder;
  }
  keeper_->begin(manifest());
}

void CheckpointSeries::advance() {
  if (copies_) copies_->check();
  writer_.poll();
  if (!keeper_) return;
  if (const auto folder = keeper_->poll()) last_ = *folder;
}

void CheckpointSeries::complete() {
  writer_.wait();
  while (keeper_ && keeper_->pending() > 0) {
    if (const auto folder = keeper_->wait([this] { check(); })) last_ = *folder;
  }
}

void CheckpointSeries::settle() noexcept {
  if (keeper_) keeper_->settle();
}

}  // namespace pipewright
