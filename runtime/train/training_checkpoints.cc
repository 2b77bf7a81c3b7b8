#include "graph/document.h"
#include "runtime/train/training.h"

namespace pipewright {

// All minibatches before done_ have come back, and none from it on has begun.
void Training::write_checkpoint(const std::string& cause) {
  begin_checkpoint(done_, cause);
  for_each_stage(generation_->worker(), [&](StageReplica& stage) {
    take_state(done_, stage, /*drained=*/pipeline_began_ == done_);
  });
}

void Training::take_state(int64_t next_minibatch, StageReplica& stage, bool drained) {
  writer_->take(next_minibatch, stage, stage.state_before(next_minibatch), drained);
}

// Rank 0: what the manifest says; it is written when all ranks have written their parts. One checkpoint at a
// time. Waiting for the one before stops no other rank on its way there: it lies behind this rank.
void Training::begin_checkpoint(int64_t next_minibatch, const std::string& cause) {
  if (!keeper_) return;
  complete_checkpoints();
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
  keeper_->begin(std::move(manifest));
}

// Between two actions: what has been written meanwhile is told, and completed.
void Training::advance_checkpoints() {
  writer_->poll();
  if (!keeper_) return;
  messages_->check();
  if (const auto folder = keeper_->poll()) last_checkpoint_ = *folder;
}

void Training::complete_checkpoints() {
  writer_->wait();
  while (keeper_ && keeper_->pending()) {
    const auto check = [this] {
      control().check();
      messages_->check();
    };
    if (const auto folder = keeper_->wait(check)) last_checkpoint_ = *folder;
  }
}

}  // namespace pipewright
