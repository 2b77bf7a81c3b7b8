#include <ATen/core/grad_mode.h>

#include "graph/error.h"
#include "runtime/sync/bucket_reducer.h"
#include "runtime/sync/gradient_exchange.h"
#include "runtime/sync/replica_syncs.h"

namespace pipewright {
namespace {

class AllReduceSync : public ReplicaSync {
 public:
  AllReduceSync(Transport& transport, StageReplica& stage, ReplicaSyncSettings settings)
      : transport_(transport),
        stage_(stage),
        settings_(std::move(settings)),
        reducer_(transport, settings_.ranks, settings_.tags.of(Stream::kReplicaSum, stage.stage()),
                 buckets_of(stage), settings_.early) {}

  void complete(size_t trainable) override { reducer_.complete(trainable); }

  int64_t before_update() override {
    stage_.round_gradients();  // zeros where the replica had no minibatch
    return reducer_.finish();
  }

  int64_t at_drain() override {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> floating;
    for (const size_t i : stage_.averaged_buffers()) floating.push_back(stage_.mutable_buffers()[i]);
    std::vector<at::Tensor> averages = floating;
    const int64_t sent_bytes = sum_over_replicas(
        transport_, settings_.ranks, settings_.tags.of(Stream::kBufferSum, stage_.stage()), averages);
    for (size_t i = 0; i < floating.size(); ++i)
      floating[i].copy_(averages[i].div_(static_cast<double>(settings_.ranks.size())));
    return sent_bytes;
  }

 private:
  static const GradientBuckets& buckets_of(const StageReplica& stage) {
    PW_CHECK(stage.buckets(), "stage " << stage.stage() << " has replicas and no buckets");
    return *stage.buckets();
  }

  Transport& transport_;
  StageReplica& stage_;
  const ReplicaSyncSettings settings_;
  BucketReducer reducer_;
};

}  // namespace

std::unique_ptr<ReplicaSync> make_all_reduce_sync(Transport& transport, StageReplica& stage,
                                                  ReplicaSyncSettings settings) {
  return std::make_unique<AllReduceSync>(transport, stage, std::move(settings));
}

}  // namespace pipewright
