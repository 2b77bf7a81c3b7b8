#include "runtime/train/run_checkpoints.h"

#include <algorithm>
#include <utility>

#include "runtime/checkpoint/kept_state.h"
#include "runtime/job/recovery_policy.h"
#include "runtime/schedule/kept_memory.h"
#include "runtime/stage/streams.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

RunCheckpoints::RunCheckpoints(Settings settings)
    : settings_(std::move(settings)), folder_(settings_.job.run.output) {
  const Run& run = settings_.job.run;
  run_ = std::make_unique<CheckpointSeries>(CheckpointSeries::Settings{
      folder_, run.checkpoint, /*kept=*/nullptr, /*most_pending=*/1, settings_.post, settings_.check});
  if (on_loss_of(run) == OnLoss::kEnd) return;
  CheckpointSettings points;
  points.every_minibatches = run.recovery.copy_every_minibatches;
  points.keep = 1;
  kept_folder_ = std::make_unique<KeptFolder>(
      KeptFolder::Settings{kept_state_of(folder_), attempt(), room_for_states(kept_bytes()),
                           /*makes=*/settings_.place.local_rank == 0});
  kept_ = std::make_unique<CheckpointSeries>(CheckpointSeries::Settings{
      kept_folder_->path(), points, kept_folder_.get(),
      static_cast<size_t>(most_pending_states(kept_bytes())), settings_.post, settings_.check});
}

std::map<CheckpointKind, CheckpointSettings> RunCheckpoints::points() const {
  std::map<CheckpointKind, CheckpointSettings> points = {{CheckpointKind::kRun, run_->points()}};
  if (kept_) points[CheckpointKind::kKept] = kept_->points();
  return points;
}

void RunCheckpoints::keep() {
  for_each([](CheckpointSeries& series) { series.keep(); });
}

void RunCheckpoints::take(const CheckpointPart& part) {
  for_each([&](CheckpointSeries& series) { series.take(part); });
}

void RunCheckpoints::settle() noexcept {
  for_each([](CheckpointSeries& series) { series.settle(); });
}

int64_t RunCheckpoints::kept_bytes() const {
  const Job& job = settings_.job;
  return kept_state_bytes(job.model.graph, job.plan_of(job.generation_at(settings_.first_minibatch)),
                          static_cast<int64_t>(slot_names(job.run.optimizer).size()));
}

// The first rank of every host makes it, before any writes there.
void RunCheckpoints::make_room(std::vector<std::string> hosts) {
  hosts_ = std::move(hosts);
  const Job& job = settings_.job;
  const bool goes_on = job.attempt && job.attempt->began;
  if (settings_.place.rank == 0 && !goes_on) remove_places_of_others();
  const bool from_memory = goes_on && job.recovered_from == "memory";
  if (settings_.place.local_rank == 0) {
    make_kept_state(folder_, attempt(), room_for_states(kept_bytes()),
                    from_memory ? std::optional(job.resume->folder) : std::nullopt);
  }
}

// Of hosts that had a part in an earlier job of the run folder, and may come back.
void RunCheckpoints::remove_places_of_others() const {
  for (const HostOfKeptState& earlier : hosts_of_kept_state(folder_)) {
    if (earlier.place != kept_state_of(folder_) &&
        std::find(hosts_.begin(), hosts_.end(), earlier.host) == hosts_.end())
      remove_kept_place(earlier.place);
  }
}

void RunCheckpoints::remove_kept() {
  if (kept_ && settings_.place.local_rank == 0) remove_kept_state(folder_);
}

void RunCheckpoints::begin_copies(const Plan& plan, Transport* transport) {
  if (!kept_ || hosts_.empty()) return;
  StateCopies::Settings copies;
  copies.ring = HostRing({hosts_.begin(), hosts_.begin() + plan.world_size});
  if (copies.ring.hosts() == 1) return;
  copies.copies = settings_.job.run.recovery.copies > 0;
  copies.folder = kept_folder_.get();
  copies.first_tag = StreamTags(static_cast<int64_t>(plan.stages.size())).of(Stream::kCopy, 0);
  kept_->begin_copies(std::make_unique<StateCopies>(*transport, std::move(copies)));
}

void RunCheckpoints::end_copies() {
  if (kept_) kept_->end_copies();
}

void RunCheckpoints::set_stages(size_t stages) {
  for_each([&](CheckpointSeries& series) { series.set_stages(stages); });
}

void RunCheckpoints::begin(const std::vector<CheckpointKind>& kinds,
                           const std::function<CheckpointManifest()>& manifest) {
  for (const CheckpointKind kind : kinds) series(kind).begin(manifest);
}

void RunCheckpoints::write(const std::vector<CheckpointKind>& kinds, int64_t next_minibatch,
                           const StatePlace& place, const StageState& state, bool drained) {
  for (const CheckpointKind kind : kinds) series(kind).write(next_minibatch, place, state, drained);
}

void RunCheckpoints::advance() {
  for_each([](CheckpointSeries& series) { series.advance(); });
  // A launcher looks into the memory of its own host only.
  if (!kept_ || hosts_.empty() || kept_->last() == told_kept_) return;
  told_kept_ = kept_->last();
  settings_.newest_kept(minibatch_of(told_kept_).value_or(0));
}

void RunCheckpoints::complete() {
  for_each([](CheckpointSeries& series) { series.complete(); });
}

void RunCheckpoints::settle_writers() noexcept {
  for_each([](CheckpointSeries& series) { series.settle_writer(); });
}

}  // namespace pipewright
