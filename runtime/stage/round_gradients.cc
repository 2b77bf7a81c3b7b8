#include "runtime/stage/round_gradients.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "models/memory/memory_meter.h"
#include "runtime/update/ownership.h"

namespace pipewright {

RoundGradients::RoundGradients(const std::vector<at::Tensor>& parameters) : sums_(parameters.size()) {
  for (const at::Tensor& parameter : parameters)
    like_.push_back({parameter.sizes().vec(), parameter.options().requires_grad(false)});
}

void RoundGradients::keep_in_buckets(const std::vector<at::Tensor>& parameters, int64_t most_bytes) {
  buckets_ = std::make_unique<GradientBuckets>(parameters, most_bytes);
}

void RoundGradients::keep_in_place(const std::vector<at::Tensor>& parameters) {
  if (buckets_) return;
  const MemoryScope scope(MemoryPurpose::kGradients);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters)
    fixed_.push_back(at::empty_like(parameter.detach(), at::MemoryFormat::Contiguous));
  for (size_t i = 0; i < sums_.size(); ++i)
    if (sums_[i].defined()) sums_[i] = fixed_[i].copy_(sums_[i]);
}

bool RoundGradients::empty() const {
  return std::none_of(sums_.begin(), sums_.end(), [](const at::Tensor& sum) { return sum.defined(); });
}

void RoundGradients::add(size_t trainable, at::Tensor gradient) {
  const at::NoGradGuard no_grad;
  at::Tensor& sum = sums_[trainable];
  if (sum.defined()) {
    sum.add_(gradient);
  } else if (!places().empty()) {
    sum = places()[trainable];
    sum.copy_(gradient);
  } else {
    // What autograd hands out may be shared, with a message under way for instance, or be spread out from
    // fewer elements. Ours can be written to. The gradient of a weight that was read transposed is a view of
    // a view, which hold each other: it is ours where nobody else has the memory.
    at::Tensor alone = gradient.is_view() ? gradient.variable_data() : std::move(gradient);
    gradient.reset();
    sum = unshared(alone) && alone.is_contiguous() ? std::move(alone)
                                                   : alone.clone(at::MemoryFormat::Contiguous);
  }
}

void RoundGradients::take_from_places(const Complete& complete) {
  sums_ = places();
  for (size_t i = 0; complete && i < sums_.size(); ++i) complete(i);
}

std::vector<at::Tensor>& RoundGradients::all() {
  for (size_t i = 0; i < sums_.size(); ++i)
    if (!sums_[i].defined()) add(i, at::zeros(like_[i].sizes, like_[i].options));
  return sums_;
}

void RoundGradients::divide(int64_t minibatches) {
  if (minibatches == 1) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& sum : all()) sum.div_(static_cast<double>(minibatches));
}

EarlyGradients::EarlyGradients(RoundGradients& round, const RoundGradients::Complete& complete, size_t count)
    : round_(round), complete_(complete), added_(count, false) {
  if (complete) made_ = [this](size_t i, const at::Tensor& gradient) { add(i, gradient); };
}

void EarlyGradients::add_others(std::vector<at::Tensor> gradients) {
  for (size_t i = 0; i < gradients.size(); ++i)
    if (!added_[i]) add(i, std::move(gradients[i]));
}

void EarlyGradients::add(size_t i, at::Tensor gradient) {
  round_.add(i, std::move(gradient));
  added_[i] = true;
  if (complete_) complete_(i);
}

}  // namespace pipewright
