#include <chrono>
#include <optional>

#include "graph/error.h"
#include "runtime/side_by_side/group_wait.h"
#include "runtime/sync/replica_syncs.h"
#include "runtime/sync/weight_average.h"

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

  void complete(size_t) override {
    if (announced_) return;
    announced_ = Clock::now();
    settings_.groups->announce(stage_.stage(), stage_.replica(), wait_.ready_in());
  }

  int64_t after_update() override {
    const auto begin = Clock::now();
    if (last_) wait_.took(seconds(*last_, begin));
    if (announced_) wait_.was_ready_in(seconds(*announced_, begin));
    announced_.reset();
    settings_.groups->ask(stage_.stage(), stage_.replica(), wait_.now());
    const std::vector<int64_t> group = settings_.groups->await(stage_.stage());
    wait_.found(static_cast<int64_t>(group.size()));
    const int64_t sent_bytes = average_weights(transport_, stage_, settings_, group);
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
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }

  Transport& transport_;
  StageReplica& stage_;
  const ReplicaSyncSettings settings_;
  GroupWait wait_;
  const std::unique_ptr<ReplicaSync> drain_;
  std::optional<Clock::time_point> announced_;  // the update under way, when
  std::optional<Clock::time_point> last_;       // when the last group was done with
};

}  // namespace

std::unique_ptr<ReplicaSync> make_partial_reduce_sync(Transport& transport, StageReplica& stage,
                                                      ReplicaSyncSettings settings,
                                                      const PartialReduceRules& rules) {
  return std::make_unique<PartialReduceSync>(transport, stage, std::move(settings), rules);
}

}  // namespace pipewright
