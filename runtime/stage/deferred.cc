#include "runtime/stage/deferred.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <utility>

namespace pipewright {

void Deferred::push(const at::Tensor& number, Take take) {
  if (number.device().is_cpu()) return take(number);
  const at::NoGradGuard no_grad;
  while (under_way_.size() >= kMost) hand_on();
  Entry entry{at::empty(number.sizes(), at::TensorOptions(number.scalar_type()).pinned_memory(true)),
              c10::Event(number.device().type()), std::move(take)};
  entry.on_host.copy_(number.detach(), /*non_blocking=*/true);
  entry.copied.record(c10::impl::getDeviceGuardImpl(number.device().type())->getStream(number.device()));
  under_way_.push_back(std::move(entry));
}

void Deferred::hand_on() {
  Entry entry = std::move(under_way_.front());
  under_way_.pop_front();
  entry.copied.synchronize();
  entry.take(entry.on_host);
}

void Deferred::poll() {
  while (!under_way_.empty() && under_way_.front().copied.query()) hand_on();
}

void Deferred::flush() {
  while (!under_way_.empty()) hand_on();
}

}  // namespace pipewright
