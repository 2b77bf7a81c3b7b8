#include <algorithm>

#include "graph/document.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/control/heartbeat.h"
#include "runtime/job/recovery_policy.h"
#include "runtime/stage/streams.h"
#include "runtime/train/training.h"
#include "runtime/transport/process_state.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

void Training::open_checkpoints() {
  const auto series = [this](const std::filesystem::path& folder, const CheckpointSettings& points, bool kept,
                             size_t most_pending) {
    return std::make_unique<CheckpointSeries>(CheckpointSeries::Settings{
        folder, points, kept, most_pending, [this](CheckpointPart part) { control().post(std::move(part)); },
        [this] {
          control().check();
          if (messages_) messages_->check();
        }});
  };
  checkpoints_ = series(folder_, job_.run.checkpoint, /*kept=*/false, 1);
  if (on_loss_of(job_.run) == OnLoss::kEnd) return;
  CheckpointSettings points;
  points.every_minibatches = job_.run.recovery.copy_every_minibatches;
  points.keep = 1;
  kept_ = series(kept_by_attempt(kept_state_of(folder_), kept_attempt()), points, /*kept=*/true,
                 static_cast<size_t>(most_pending_states(kept_bytes())));
}

// Of one state that is kept: weights, what the optimizer keeps, and older versions of weights.
int64_t Training::kept_bytes() const {
  int64_t weights = 0, others = 0;
  for (const Parameter& parameter : job_.model.graph.parameters) weights += parameter.type.bytes();
  for (const Buffer& buffer : job_.model.graph.buffers) others += buffer.type.bytes();
  const auto slots = static_cast<int64_t>(slot_names(job_.run.optimizer).size());
  int64_t versions = 0;
  for (const Stage& stage : job_.plan_of(job_.generation_at(data_.first_minibatch())).stages)
    versions = std::max(versions, stage.in_flight - 1);
  return (1 + slots + versions) * weights + others;
}

// The first rank of every host, before any writes there.
void Training::make_room_for_kept() {
  const Place& place = session_.place();
  if (place.local_ranks != place.world_size) {
    for (int64_t rank = 0; rank < place.world_size; ++rank) {
      const std::string process =
          session_.store()->get(process_key(rank), session_.start_patience(), [this] { control().check(); });
      hosts_.push_back(ProcessName::from_text(process).host);
    }
  }
  const bool goes_on = job_.attempt && job_.attempt->began;
  if (place.rank == 0 && !goes_on) {  // of hosts that had a part in an earlier job, and may come
    for (const HostOfKeptState& earlier : hosts_of_kept_state(folder_)) {
      if (earlier.place != kept_state_of(folder_) &&
          std::find(hosts_.begin(), hosts_.end(), earlier.host) == hosts_.end())
        remove_kept_place(earlier.place);
    }
  }
  const bool from_memory = goes_on && job_.recovered_from == "memory";
  if (place.local_rank == 0) {
    make_kept_state(folder_, kept_attempt(), room_for_states(kept_bytes()),
                    from_memory ? std::optional(job_.resume->folder) : std::nullopt);
  }
}

void Training::remove_kept() {
  if (session_.place().local_rank == 0) remove_kept_state(folder_);
}

// Among the hosts of the plan in force.
void Training::begin_copies() {
  if (hosts_.empty() || !generation_->takes_part()) return;
  const Plan& plan = generation_->plan();
  StateCopies::Settings settings;
  settings.ring = HostRing({hosts_.begin(), hosts_.begin() + plan.world_size});
  if (settings.ring.hosts() == 1) return;
  settings.copies = job_.run.recovery.copies > 0;
  settings.folder = kept_by_attempt(kept_state_of(folder_), kept_attempt());
  settings.first_tag = StreamTags(static_cast<int64_t>(plan.stages.size())).of(Stream::kCopy, 0);
  kept_->begin_copies(std::make_unique<StateCopies>(*session_.transport(), std::move(settings)));
}

// A launcher looks into the memory of its own host only.
void Training::tell_newest_kept(int64_t minibatch) {
  if (session_.place().rank == 0 && !hosts_.empty())
    session_.store()->set(kNewestKeptKey, std::to_string(minibatch));
}

std::vector<CheckpointSeries*> Training::all_series() const {
  std::vector<CheckpointSeries*> all = {checkpoints_.get()};
  if (kept_) all.push_back(kept_.get());
  return all;
}

// The series of which a checkpoint is due after minibatch n - 1.
std::vector<CheckpointSeries*> Training::series_due(int64_t n) const {
  std::vector<CheckpointSeries*> due;
  // What cannot be kept between drains is kept at each.
  const bool at_drains = !sync_facts(job_.run.sync).keeps_replicas_equal;
  for (CheckpointSeries* series : all_series())
    if ((at_drains && series == kept_.get()) ||
        checkpoint_due(n, series->points(), generation_->period(), generation_->length()))
      due.push_back(series);
  return due;
}

// All minibatches before done_ have come back, and none from it on has begun.
void Training::write_checkpoints(const std::vector<CheckpointSeries*>& series, const std::string& cause) {
  for (CheckpointSeries* one : series) one->begin([&] { return manifest_of(done_, cause); });
  for_each_stage(generation_->worker(), [&](StageReplica& stage) {
    take_state(series, done_, stage, /*drained=*/pipeline_began_ == done_);
  });
}

void Training::take_state(const std::vector<CheckpointSeries*>& series, int64_t next_minibatch,
                          StageReplica& stage, bool drained) {
  const StageState state = stage.state_before(next_minibatch);
  for (CheckpointSeries* one : series) one->write(next_minibatch, stage, state, drained);
}

// What is in it but for the stages, which their ranks write.
CheckpointManifest Training::manifest_of(int64_t next_minibatch, const std::string& cause) const {
  CheckpointManifest manifest;
  manifest.next_minibatch = next_minibatch;
  manifest.pipeline_began = pipeline_began_;
  manifest.minibatches_per_epoch = data_.length().minibatches_per_epoch;
  manifest.evaluated_epochs = evaluated_epochs_;
  manifest.cause = cause;
  manifest.libraries = {{"pipewright", PIPEWRIGHT_VERSION}, {"libtorch", PIPEWRIGHT_TORCH_VERSION}};
  manifest.graph_digest = document_digest(job_.model.graph);
  manifest.run = job_.run;
  manifest.plan = generation_->plan();
  return manifest;
}

// Between two actions: what has been written meanwhile is told, and completed.
void Training::advance_checkpoints() {
  if (messages_) messages_->check();
  checkpoints_->advance();
  if (!kept_) return;
  kept_->advance();
  if (!hosts_.empty() && kept_->last() != told_kept_) {
    told_kept_ = kept_->last();
    tell_newest_kept(minibatch_of(told_kept_).value_or(0));
  }
}

}  // namespace pipewright
