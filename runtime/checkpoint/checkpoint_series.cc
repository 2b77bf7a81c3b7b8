#include "runtime/checkpoint/checkpoint_series.h"

#include <cstdio>
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
  keeper_ = settings_.kept ? std::make_unique<CheckpointKeeper>(
                                 settings_.folder, settings_.points.keep, /*spares=*/true,
                                 [this](int64_t n, const std::string& why) { tell_lost(n, why); })
                           : std::make_unique<CheckpointKeeper>(settings_.folder, settings_.points.keep);
}

void CheckpointSeries::tell_lost(int64_t next_minibatch, const std::string& why) {
  if (std::exchange(lost_, true)) return;
  std::fprintf(
      stderr,
      "warning: the state before minibatch %ld is not kept for lost ranks: %s; training goes on, and "
      "until a later one is kept a loss goes back to what there is before it: an older checkpoint, or "
      "the run's start\n",
      next_minibatch, why.c_str());
}

void CheckpointSeries::note(const std::optional<std::filesystem::path>& whole) {
  if (!whole) return;
  last_ = *whole;
  if (std::exchange(lost_, false))
    std::fprintf(stderr, "the state for lost ranks is kept again, from minibatch %ld on\n",
                 minibatch_of(last_).value_or(0));
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
    note(keeper_->wait([this] { check(); }));
  }
  keeper_->begin(manifest());
}

void CheckpointSeries::advance() {
  if (copies_) copies_->check();
  writer_.poll();
  if (!keeper_) return;
  note(keeper_->poll());
}

void CheckpointSeries::complete() {
  writer_.wait();
  while (keeper_ && keeper_->pending() > 0) {
    note(keeper_->wait([this] { check(); }));
  }
}

void CheckpointSeries::settle() noexcept {
  if (keeper_) keeper_->settle();
}

}  // namespace pipewright
