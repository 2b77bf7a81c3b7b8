#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "runtime/sync/gradient_exchange.h"
#include "runtime/sync/replica_syncs.h"
#include "runtime/update/gradient_norm.h"

namespace pipewright {
namespace {

class DrainSync : public ReplicaSync {
 public:
  DrainSync(Transport& transport, StageReplica& stage, ReplicaSyncSettings settings)
      : transport_(transport), stage_(stage), settings_(std::move(settings)) {}

  void complete(size_t) override {}

  int64_t at_drain() override {
    const at::NoGradGuard no_grad;
    StageState state = stage_.state();
    int64_t sent_bytes = 0;
    add_updates(state, most_updates(sent_bytes) - stage_.updates_of_span());
    std::vector<at::Tensor*> averaged;
    for (const size_t i : stage_.program().trainable()) averaged.push_back(&state.weights[i]);
    for (const size_t i : stage_.averaged_buffers()) averaged.push_back(&state.buffers[i]);
    for (auto& [name, slots] : state.optimizer.slots)
      for (at::Tensor& slot : slots) averaged.push_back(&slot);
    const std::vector<at::Tensor> before = trained(state);
    sent_bytes += average(averaged);
    if (settings_.drained) settings_.drained(spread(before, trained(state)));
    for (auto& [name, slots] : state.optimizer.slots)
      for (at::Tensor& slot : slots) count_memory_as(slot, MemoryPurpose::kOptimizer);
    stage_.replace(std::move(state));
    return sent_bytes;
  }

 private:
  std::vector<at::Tensor> trained(const StageState& state) const {
    std::vector<at::Tensor> weights;
    for (const size_t i : stage_.program().trainable()) weights.push_back(state.weights[i].detach());
    return weights;
  }

  static double spread(const std::vector<at::Tensor>& own, const std::vector<at::Tensor>& mean) {
    std::vector<at::Tensor> difference, there;
    for (size_t i = 0; i < own.size(); ++i) {
      difference.push_back(at::sub(own[i], mean[i]).cpu());
      there.push_back(mean[i].cpu());
    }
    const double distance = square_sum(difference), norm = square_sum(there);
    return norm > 0 ? std::sqrt(distance / norm) : 0;
  }

  // Of a replica in the span.
  int64_t most_updates(int64_t& sent_bytes) const {
    std::vector<at::Tensor> updates = {at::zeros({static_cast<int64_t>(settings_.ranks.size())},
                                                 at::TensorOptions(at::kDouble).device(stage_.device()))};
    updates[0][stage_.replica()] = static_cast<double>(stage_.updates_of_span());
    sent_bytes += sum_over_replicas(transport_, settings_.ranks,
                                    settings_.tags.of(Stream::kBufferSum, stage_.stage()), updates);
    return static_cast<int64_t>(updates[0].max().item<double>());
  }

  // As if this replica had made so many updates more: it may be the only one that has made none yet, and has
  // no slots then.
  void add_updates(StageState& state, int64_t further) const {
    if (state.updates + further == 0) return;
    const std::vector<size_t>& trainable = stage_.program().trainable();
    state.updates += further;
    UpdateState& optimizer = state.optimizer;
    optimizer.updates.resize(trainable.size(), 0);
    for (int64_t& updates : optimizer.updates) updates += further;
    if (!optimizer.slots.empty()) return;
    for (const std::string& name : slot_names(settings_.optimizer)) {
      const size_t slot = optimizer.slots.size();
      optimizer.slots.emplace_back(name, std::vector<at::Tensor>());
      for (const size_t i : trainable) {
        const at::Tensor weight = state.weights[i].detach();
        const auto shape =
            slot_shape(settings_.optimizer, slot, stage_.program().parameters()[i], weight.sizes().vec());
        optimizer.slots.back().second.push_back(at::zeros(shape, weight.options()));
      }
    }
  }

  // Each becomes the replicas' mean, in memory of its own: the old one may still be written to a checkpoint.
  int64_t average(const std::vector<at::Tensor*>& tensors) const {
    std::vector<at::Tensor> sums;
    for (const at::Tensor* tensor : tensors) sums.push_back(tensor->detach());
    const int64_t sent_bytes = sum_over_replicas(transport_, settings_.ranks,
                                                 settings_.tags.of(Stream::kBufferSum, stage_.stage()), sums);
    for (size_t i = 0; i < tensors.size(); ++i) {
      at::Tensor mean = at::empty_like(tensors[i]->detach());
      mean.copy_(at::div(sums[i], static_cast<double>(settings_.ranks.size())));
      *tensors[i] = std::move(mean);
    }
    return sent_bytes;
  }

  Transport& transport_;
  StageReplica& stage_;
  const ReplicaSyncSettings settings_;
};

}  // namespace

std::unique_ptr<ReplicaSync> make_drain_sync(Transport& transport, StageReplica& stage,
                                             ReplicaSyncSettings settings) {
  return std::make_unique<DrainSync>(transport, stage, std::move(settings));
}

}  // namespace pipewright
