#include <algorithm>
#include <set>

#include "graph/document.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/control/heartbeat.h"
#include "runtime/job/recovery_policy.h"
#include "runtime/train/training.h"
#include "runtime/update/update_rule.h"

namespace pipewright {
namespace {

// Rank 0 hears within a few tenths of a second that the ranks have written their parts of the state in
// memory. Where minibatches are quick the next ones are begun meanwhile, so that nobody waits: as many as
// take no more memory than this, which a small model may well have.
constexpr int64_t kPendingBytes = int64_t{256} << 20;
constexpr int64_t kLeastPending = 4, kMostPending = 64;

}  // namespace

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
  kept_ = series(kept_state_of(folder_), points, /*kept=*/true, static_cast<size_t>(most_kept_pending()));
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

int64_t Training::most_kept_pending() const {
  return std::clamp(kPendingBytes / std::max<int64_t>(1, kept_bytes()), kLeastPending, kMostPending);
}

bool Training::ranks_share_host() {
  if (!session_.store()) return true;
  std::set<std::string> hosts;
  for (int64_t rank = 0; rank < session_.place().world_size; ++rank) {
    const RankReport report = read_report(*session_.store(), rank);
    hosts.insert(report.process ? report.process->identity : "");
  }
  return hosts.size() == 1;
}

std::vector<CheckpointSeries*> Training::all_series() const {
  std::vector<CheckpointSeries*> all = {checkpoints_.get()};
  if (kept_) all.push_back(kept_.get());
  return all;
}

// The series of which a checkpoint is due after minibatch n - 1.
std::vector<CheckpointSeries*> Training::series_due(int64_t n) const {
  std::vector<CheckpointSeries*> due;
  for (CheckpointSeries* series : all_series())
    if (checkpoint_due(n, series->points(), generation_->period(), generation_->length()))
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
  for (CheckpointSeries* series : all_series()) series->advance();
}

}  // namespace pipewright
