#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>

#include "models/memory/memory_meter.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/sync/replica_syncs.h"
#include "runtime/sync/sum_queue.h"
#include "runtime/sync/weight_average.h"

namespace pipewright {
namespace {

using Tensors = std::vector<at::Tensor>;

class HetPipeSync : public ReplicaSync {
 public:
  HetPipeSync(Transport& transport, StageReplica& stage, ReplicaSyncSettings settings,
              const HetPipeRules& rules)
      : transport_(transport),
        stage_(stage),
        settings_(settings),
        distance_(rules.distance),
        wave_updates_(rules.wave_updates > 0 ? rules.wave_updates : settings.updates_in_flight),
        sums_(transport, settings.ranks, settings.tags.of(Stream::kReplicaSum, stage.stage())),
        drain_(make_drain_sync(transport, stage, std::move(settings))) {}

  // Before the first update of a span.
  void complete(size_t) override { begin(); }

  int64_t after_update() override {
    if (stage_.updates_of_span() % wave_updates_ != 0) return 0;
    const at::NoGradGuard no_grad;
    end_wave();
    if (waves_ > distance_) {
      take_oldest();
      stage_.set_trained_weights([this](size_t i) { return local(i); });
    }
    start_ = on_host(trained());
    return sums_.take_sent_bytes();
  }

  // Others may wait for waves of any of this rank's stages: all are handed on before any is waited for.
  void no_more_updates() override {
    const at::NoGradGuard no_grad;
    begin();
    // The last wave may be of fewer updates, and of none where another pipeline has made one more.
    for (; waves_ < waves_of_all(); start_ = on_host(trained())) end_wave();
  }

  int64_t at_drain() override {
    const at::NoGradGuard no_grad;
    while (!own_.empty()) take_oldest();
    StageState state = stage_.state();
    for (size_t i = 0; i < global_.size(); ++i)
      state.weights[stage_.program().trainable()[i]] = global_[i].to(stage_.device());
    stage_.replace(std::move(state));
    begun_ = false;
    return sums_.take_sent_bytes() + drain_->at_drain();
  }

 private:
  Tensors trained() const {
    Tensors weights;
    for (const size_t i : stage_.program().trainable()) weights.push_back(stage_.weights()[i].detach());
    return weights;
  }
  static Tensors on_host(const Tensors& tensors) {
    const MemoryScope scope(MemoryPurpose::kVersions);
    Tensors copies;
    for (const at::Tensor& tensor : tensors)
      copies.push_back(tensor.is_cpu() ? tensor.clone() : tensor.cpu());
    return copies;
  }

  // Of the pipeline that has most, in the span, of which all know by now where it ends.
  int64_t waves_of_all() const {
    const auto pipelines = static_cast<int64_t>(settings_.ranks.size());
    const StageTurns& turns = stage_.turns();
    int64_t updates = 0;
    for (int64_t p = 0; p < pipelines; ++p) {
      const Span own = PipelineTurn{p, pipelines}.own(stage_.span().of_run());
      if (own.count > 0)
        updates = std::max(updates, turns.round_of(own.end() - 1) - turns.round_of(own.first) + 1);
    }
    return (updates + wave_updates_ - 1) / wave_updates_;
  }

  void begin() {
    if (begun_) return;
    begun_ = true;
    waves_ = 0;
    global_ = on_host(trained());
    start_ = on_host(trained());
  }

  // Hands what it has brought to all.
  void end_wave() {
    Tensors change = on_host(trained());
    for (size_t i = 0; i < change.size(); ++i) change[i].sub_(start_[i]);
    own_.push_back(change);
    sums_.push(on_host(change));
    ++waves_;
  }

  // Waits until every pipeline has ended that wave.
  void take_oldest() {
    Tensors sums = sums_.take();
    for (size_t i = 0; i < sums.size(); ++i)
      global_[i].add_(sums[i].div_(static_cast<double>(settings_.ranks.size())));
    own_.pop_front();
  }

  // What all have, and on top this pipeline's waves that not all have yet.
  at::Tensor local(size_t i) const {
    at::Tensor weight = global_[i];
    for (const Tensors& change : own_) weight = weight + change[i];
    return weight;
  }

  Transport& transport_;
  StageReplica& stage_;
  const ReplicaSyncSettings settings_;
  const int64_t distance_, wave_updates_;
  SumQueue sums_;
  const std::unique_ptr<ReplicaSync> drain_;
  // Of the span, in the host's memory, by trainable parameter.
  bool begun_ = false;
  int64_t waves_ = 0;        // that this pipeline has ended
  Tensors global_;           // with the waves that all have ended, as far as they were taken
  Tensors start_;            // of the wave under way
  std::deque<Tensors> own_;  // what waves of this pipeline changed that are not in global_
};

}  // namespace

std::unique_ptr<ReplicaSync> make_hetpipe_sync(Transport& transport, StageReplica& stage,
                                               ReplicaSyncSettings settings, const HetPipeRules& rules) {
  return std::make_unique<HetPipeSync>(transport, stage, std::move(settings), rules);
}

}  // namespace pipewright
