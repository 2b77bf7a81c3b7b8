// Passes of one rank among others.
#include <ATen/core/grad_mode.h>

#include <utility>

#include "profiler/backward.h"
#include "profiler/bench.h"

namespace pipewright {

void Bench::train() {
  update_before_pass();
  Received received = receive();
  const at::Tensor root = root_of(forward(std::move(received.values), nullptr));
  const std::vector<at::Tensor> gradients = backward(root, targets(received));
  if (!rule_) prepare_updates(gradients);
}

Bench::InFlight Bench::set_out() {
  Received received = receive();
  InFlight in_flight;
  in_flight.root = root_of(forward(std::move(received.values), nullptr));
  in_flight.targets = targets(received);
  in_flight.held = std::move(received.held);
  return in_flight;
}

Stretch Bench::time_in_pipeline(InFlight& in_flight) {
  if (!in_flight.root.defined()) in_flight = set_out();
  update_before_pass();
  marks_.clear();
  const size_t begin = marks_.set();
  InFlight next = set_out();
  std::vector<at::Tensor> gradients = backward(in_flight.root, in_flight.targets);
  in_flight = {};
  const size_t end = marks_.set();
  if (!rule_) prepare_updates(gradients);
  in_flight = std::move(next);
  marks_.wait();
  return marks_.between(begin, end);
}

Stretch Bench::time_by_turns(const std::function<void()>& others) {
  update_before_pass();
  Received received = receive();
  marks_.clear();
  others();
  const size_t forward_begin = marks_.set();
  const at::Tensor root = root_of(forward(std::move(received.values), nullptr));
  const size_t forward_end = marks_.set();
  others();
  const size_t backward_begin = marks_.set();
  const std::vector<at::Tensor> gradients = backward(root, targets(received));
  const size_t backward_end = marks_.set();
  if (!rule_) prepare_updates(gradients);
  marks_.wait();
  Stretch both = marks_.between(forward_begin, forward_end);
  both += marks_.between(backward_begin, backward_end);
  return both;
}

ReplicaPass Bench::time_replica(const std::function<double(double own_seconds)>& slowest,
                                const std::function<void(const std::vector<at::Tensor>& gradients)>& sum) {
  Received received = receive();
  marks_.clear();
  const size_t begin = marks_.set();
  const at::Tensor root = root_of(forward(std::move(received.values), nullptr));
  std::vector<at::Tensor> gradients = backward(root, targets(received));
  if (!rule_) prepare_updates(gradients);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].copy_(gradients[updated_[i]]);
    gradients[updated_[i]].reset();
  }
  const size_t compute_end = marks_.set();
  marks_.wait();
  const double compute_seconds = slowest(marks_.between(begin, compute_end).device_seconds);
  sum(sums_);
  const size_t update_begin = marks_.set();
  for (at::Tensor& gradient : sums_) gradient.div_(2.0);
  rule_->step(weights_, sums_, 0, weights_, weight_copies_);
  const size_t end = marks_.set();
  marks_.wait();
  return {compute_seconds, marks_.between(update_begin, end).device_seconds};
}

}  // namespace pipewright
