#include "runtime/stage/deferred.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <utility>

#include "runtime/update/ownership.h"

namespace pipewright {

void Deferred::push(const at::Tensor& number, Take take) {
  if (number.device().is_cpu()) return take(number);
  const at::NoGradGuard no_grad;
  while (under_way_.size() >= kMost) hand_on();
  Entry entry = new_entry(number, std::move(take));
  entry.on_host.copy_(number.detach(), /*non_blocking=*/true);
  entry.copied.record(c10::impl::getDeviceGuardImpl(number.device().type())->getStream(number.device()));
  under_way_.push_back(std::move(entry));
}

Deferred::Entry Deferred::new_entry(const at::Tensor& number, Take take) {
  const auto fitting = std::find_if(spare_.begin(), spare_.end(), [&](const Entry& entry) {
    return entry.on_host.scalar_type() == number.scalar_type() && entry.on_host.sizes() == number.sizes() &&
           entry.copied.device() == number.device();
  });
  if (fitting == spare_.end())
    return {at::empty(number.sizes(), at::TensorOptions(number.scalar_type()).pinned_memory(true)),
            c10::Event(number.device().type()), std::move(take)};
  Entry entry = std::move(*fitting);
  spare_.erase(fitting);
  entry.take = std::move(take);
  return entry;
}

void Deferred::hand_on() {
  Entry entry = std::move(under_way_.front());
  under_way_.pop_front();
  entry.copied.synchronize();
  std::exchange(entry.take, {})(entry.on_host);
  if (spare_.size() < kMost && unshared(entry.on_host)) spare_.push_back(std::move(entry));
}

void Deferred::poll() {
  while (!under_way_.empty() && under_way_.front().copied.query()) hand_on();
}

void Deferred::flush() {
  while (!under_way_.empty()) hand_on();
}

}  // namespace pipewright
