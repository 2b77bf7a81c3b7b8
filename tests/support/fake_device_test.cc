// Does the stand-in for a GPU behave like one?
#include "tests/support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>

using namespace pipewright::testing;

TEST_CASE("the fake device computes what the CPU computes, and refuses its tensors") {
  const at::Tensor host = at::randn({4, 3});
  const at::Tensor there = host.to(fake_device());
  CHECK(there.device() == fake_device());
  CHECK((there.t().matmul(there) + 1).cpu().equal(host.t().matmul(host) + 1));
  CHECK_THROWS_WITH(there + host, Catch::Contains("same device"));
  CHECK((there * at::scalar_tensor(2.0)).cpu().equal(host * 2));

  at::Tensor changed = at::zeros({4, 3}, there.options());
  changed.narrow(0, 1, 2).add_(there.narrow(0, 0, 2));
  CHECK(changed.narrow(0, 1, 2).cpu().equal(host.narrow(0, 0, 2)));
  CHECK(changed.select(0, 0).cpu().equal(at::zeros({3})));
}

TEST_CASE("autograd on the fake device runs elsewhere and gives the CPU's bits") {
  const at::Tensor weight = at::randn({5, 3});
  const at::Tensor x = at::randn({4, 3});
  const auto gradient = [&](at::Device device) {
    at::Tensor leaf = weight.to(device).detach().requires_grad_(true);
    const at::Tensor loss = at::gelu(at::linear(x.to(device), leaf)).square().mean();
    return torch::autograd::grad({loss}, {leaf})[0];
  };
  const at::Tensor there = gradient(fake_device());
  CHECK(there.device() == fake_device());
  CHECK(there.cpu().equal(gradient(at::kCPU)));
}

TEST_CASE("waits are counted, and events may come late") {
  reset_fake_device(3);
  const at::Tensor there = at::ones({2}).to(fake_device(), /*non_blocking=*/true);
  CHECK(fake_device_counts().uploads == 1);
  CHECK(fake_device_counts().uploaded_bytes == 8);
  const at::Tensor back = at::empty({2});
  back.copy_(there, /*non_blocking=*/true);
  CHECK(fake_device_counts().downloads == 1);
  CHECK(fake_device_counts().waits == 0);
  c10::Event event(fake_device().type());
  event.record(c10::impl::getDeviceGuardImpl(fake_device().type())->getStream(fake_device()));
  CHECK_FALSE(event.query());
  CHECK_FALSE(event.query());
  CHECK(event.query());
  CHECK(there.sum().item<double>() == 2);
  CHECK(fake_device_counts().waits == 1);
  CHECK(fake_device_counts().event_waits == 0);
  event.synchronize();
  CHECK(fake_device_counts().event_waits == 1);
  reset_fake_device();
}

TEST_CASE("events have the time of the device's clock, when they or later ones were waited for") {
  set_fake_clock([](const std::string&) { return 0.25; });
  const at::Tensor there = at::ones({2}).to(fake_device());
  const c10::Stream stream = c10::impl::getDeviceGuardImpl(fake_device().type())->getStream(fake_device());
  std::vector<c10::Event> events;
  std::vector<int64_t> operators;
  for (int i = 0; i < 3; ++i) {
    events.emplace_back(fake_device().type(), c10::EventFlag::BACKEND_DEFAULT);
    events.back().record(stream);
    operators.push_back(fake_device_counts().operators);
    for (int k = 0; k <= i; ++k) there.neg();
  }
  CHECK_FALSE(events[0].query());
  events[1].synchronize();
  CHECK(events[0].query());
  CHECK_FALSE(events[2].query());
  CHECK(operators[0] < operators[1]);
  CHECK(events[0].elapsedTime(events[1]) == Approx(250 * (operators[1] - operators[0])));
  events[2].synchronize();
  CHECK(events[1].elapsedTime(events[2]) == Approx(250 * (operators[2] - operators[1])));
  set_fake_clock();
}

TEST_CASE("the allocator of the fake device counts what its tensors hold, views nothing") {
  c10::DeviceAllocator* const allocator = at::getDeviceAllocator(fake_device().type());
  const auto now = [&] { return allocator->getDeviceStats(0).allocated_bytes[0].current; };
  const int64_t before = now();
  at::Tensor there = at::ones({1000}).to(fake_device());
  CHECK(now() - before == 4000);
  const at::Tensor view = there.view({10, 100}).t().slice(0, 5);
  CHECK(view.storage().data() == there.storage().data());
  CHECK(now() - before == 4000);
  there.reset();
  CHECK(now() - before == 4000);
  allocator->resetPeakStats(0);
  view.contiguous();
  CHECK(allocator->getDeviceStats(0).allocated_bytes[0].peak - before >= 4000 + 4 * 95 * 10);
  CHECK(now() - before == 4000);
  CHECK(allocator->getDeviceStats(1).allocated_bytes[0].current == 0);
}
