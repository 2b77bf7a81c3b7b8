#include "runtime/side_by_side/lockstep_pairs.h"
#include "runtime/sync/replica_syncs.h"
#include "runtime/sync/weight_average.h"

namespace pipewright {
namespace {

class LockstepSync : public ReplicaSync {
 public:
  LockstepSync(Transport& transport, StageReplica& stage, ReplicaSyncSettings settings)
      : transport_(transport),
        stage_(stage),
        settings_(settings),
        pairs_{settings.seed, static_cast<int64_t>(settings.ranks.size()), stage.turns().round_length()},
        drain_(make_drain_sync(transport, stage, std::move(settings))) {}

  void complete(size_t) override {}

  int64_t after_update() override {
    const PipelineSpan& span = stage_.span();
    const int64_t round = stage_.turns().round_of(span.own().first) + stage_.updates_of_span() - 1;
    return average_weights(transport_, stage_, settings_,
                           pairs_.group_of(stage_.replica(), round, span.of_run()));
  }

  int64_t at_drain() override { return drain_->at_drain(); }

 private:
  Transport& transport_;
  StageReplica& stage_;
  const ReplicaSyncSettings settings_;
  const LockstepPairs pairs_;
  const std::unique_ptr<ReplicaSync> drain_;
};

}  // namespace

std::unique_ptr<ReplicaSync> make_lockstep_sync(Transport& transport, StageReplica& stage,
                                                ReplicaSyncSettings settings) {
  return std::make_unique<LockstepSync>(transport, stage, std::move(settings));
}

}  // namespace pipewright
