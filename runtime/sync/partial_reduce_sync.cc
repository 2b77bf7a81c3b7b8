#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>

#include <chrono>
#include <optional>

#include "graph/error.h"
#include "runtime/groups/group_wait.h"
#include "runtime/sync/gradient_exchange.h"
#include "runtime/sync/replica_syncs.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

class PartialReduceSync : public ReplicaSync {
 public:
  PartialReduceSync(Transport& transport, StageReplica& stage, ReplicaSyncSettings settings,
                    const PartialReduceRules& rules)
      : transport_(transport),
        stage_(stage),
        settings_(settings),
        wait_(rules),
        drain_(make_drain_sync(transport, stage, std::move(settings))) {
    PW_CHECK(settings_.groups, "stage " << stage.stage() << " has nobody to ask for groups");
  }

  void complete(size_t) override { ask(); }

  int64_t after_update() override {
    const auto begin = Clock::now();
    if (last_) wait_.took(std::chrono::duration<double>(begin - *last_).count());
    ask();
    const std::vector<int64_t> group = settings_.groups->await(stage_.stage());
    asked_ = false;
    wait_.found(static_cast<int64_t>(group.size()));
    const int64_t sent_bytes = group.size() == 1 ? 0 : average(group);
    last_ = Clock::now();
    return sent_bytes;
  }

  void no_more_updates() override { settings_.groups->leave(stage_.stage(), stage_.replica()); }

  int64_t at_drain() override {
    settings_.groups->await_left(stage_.stage());
    last_.reset();
    return drain_->at_drain();
  }

 private:
  void ask() {
    if (asked_) return;
    settings_.groups->ask(stage_.stage(), stage_.replica(), wait_.now());
    asked_ = true;
  }

  // The newest version's weights, which nobody has read yet, in place.
  int64_t average(const std::vector<int64_t>& group) {
    const at::NoGradGuard no_grad;
    std::vector<int64_t> ranks;
    for (const int64_t pipeline : group) ranks.push_back(settings_.ranks.at(static_cast<size_t>(pipeline)));
    std::vector<at::Tensor> weights, sums;
    for (const size_t i : stage_.program().trainable()) {
      weights.push_back(stage_.weights()[i].detach());
      // Over the host: a communicator of a device is made by all of its ranks, and groups are any of them.
      sums.push_back(weights.back().cpu());
    }
    const int64_t sent_bytes =
        sum_over_replicas(transport_, ranks, settings_.tags.of(Stream::kReplicaSum, stage_.stage()), sums);
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i].copy_(at::div(sums[i], static_cast<double>(group.size())));
    return sent_bytes;
  }

  Transport& transport_;
  StageReplica& stage_;
  const ReplicaSyncSettings settings_;
  GroupWait wait_;
  const std::unique_ptr<ReplicaSync> drain_;
  bool asked_ = false;
  std::optional<Clock::time_point> last_;  // when the last group was done with
};

}  // namespace

std::unique_ptr<ReplicaSync> make_partial_reduce_sync(Transport& transport, StageReplica& stage,
                                                      ReplicaSyncSettings settings,
                                                      const PartialReduceRules& rules) {
  return std::make_unique<PartialReduceSync>(transport, stage, std::move(settings), rules);
}

}  // namespace pipewright
