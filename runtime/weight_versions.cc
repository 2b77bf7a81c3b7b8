#include "runtime/weight_versions.h"

#include <algorithm>

namespace pipewright {

WeightVersions::WeightVersions(std::vector<at::Tensor> first, int64_t number) {
  latest_ = make(number, std::move(first));
  *peak_live_ = 1;
}

std::shared_ptr<const WeightVersion> WeightVersions::make(int64_t number, std::vector<at::Tensor> weights) {
  ++*live_;
  return std::shared_ptr<const WeightVersion>(new WeightVersion{number, std::move(weights)},
                                              [live = live_](const WeightVersion* version) {
                                                --*live;
                                                delete version;
                                              });
}

void WeightVersions::publish(std::vector<at::Tensor> weights) {
  auto next = make(latest_->number + 1, std::move(weights));
  latest_ = std::move(next);
  // Counted after the old latest has gone, unless a minibatch holds it: while a step runs, the version it
  // makes is neither read nor stashed yet (docs/semantics.md).
  *peak_live_ = std::max(*peak_live_, *live_);
}

}  // namespace pipewright
