#include "runtime/sync/weight_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>

#include "runtime/sync/gradient_exchange.h"

namespace pipewright {

int64_t average_weights(Transport& transport, StageReplica& stage, const ReplicaSyncSettings& settings,
                        const std::vector<int64_t>& group) {
  if (group.size() == 1) return 0;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> ranks;
  for (const int64_t pipeline : group) ranks.push_back(settings.ranks.at(static_cast<size_t>(pipeline)));
  std::vector<at::Tensor> sums;
  // Over the host: a communicator of a device is made by all of its ranks, and groups are any of them.
  for (const size_t i : stage.program().trainable()) sums.push_back(stage.weights()[i].detach().cpu());
  const int64_t sent_bytes =
      sum_over_replicas(transport, ranks, settings.tags.of(Stream::kReplicaSum, stage.stage()), sums);
  stage.set_trained_weights([&](size_t i) { return at::div(sums[i], static_cast<double>(group.size())); });
  return sent_bytes;
}

}  // namespace pipewright
