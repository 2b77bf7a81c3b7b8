#include "runtime/update/delayed_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sub.h>

namespace pipewright {

void WholeDelayedStep::begin(StepTensor& tensor, at::Tensor previous) const {
  if (kind == DelayStep::kNone) return;
  const at::NoGradGuard no_grad;
  if (tensor.next.is_same(tensor.old)) tensor.old = tensor.old.detach().clone();
  if (kind != DelayStep::kCompensate) return;
  // In the place of `previous`, which end() makes anew: no memory for it.
  tensor.gradient = previous.mul_(tensor.gradient).mul_(tensor.gradient).mul_(strength).add_(tensor.gradient);
}

void WholeDelayedStep::end(const StepTensor& tensor, at::Tensor previous) const {
  if (kind == DelayStep::kNone) return;
  const at::NoGradGuard no_grad;
  at::Tensor next = tensor.next.detach();
  const at::Tensor old = tensor.old.detach();
  if (kind == DelayStep::kFeedBack) {
    const at::Tensor change = at::sub(next, old);
    next.sub_(previous.sub_(change));
    previous.copy_(change);
  } else {
    at::sub_out(previous, next, old);
  }
}

}  // namespace pipewright
