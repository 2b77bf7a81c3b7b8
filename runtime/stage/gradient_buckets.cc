#include "runtime/stage/gradient_buckets.h"

#include <ATen/ops/empty.h>

#include "models/memory/memory_meter.h"

namespace pipewright {

GradientBuckets::GradientBuckets(const std::vector<at::Tensor>& parameters, int64_t most_bytes)
    : gradients_(parameters.size()), bucket_of_(parameters.size()) {
  const MemoryScope scope(MemoryPurpose::kGradients);
  for (size_t end = parameters.size(); end > 0;) {
    const at::ScalarType dtype = parameters[end - 1].scalar_type();
    size_t begin = end;
    int64_t bytes = 0;
    int64_t elements = 0;
    while (begin > 0) {
      const at::Tensor& next = parameters[begin - 1];
      const auto next_bytes = static_cast<int64_t>(next.nbytes());
      if (begin < end && (next.scalar_type() != dtype || bytes + next_bytes > most_bytes)) break;
      bytes += next_bytes;
      elements += next.numel();
      --begin;
    }
    const at::Tensor flat = at::empty({elements}, parameters[begin].options().requires_grad(false));
    int64_t at = 0;
    for (size_t i = begin; i < end; ++i) {
      gradients_[i] = flat.narrow(0, at, parameters[i].numel()).view(parameters[i].sizes());
      bucket_of_[i] = flat_.size();
      at += parameters[i].numel();
    }
    flat_.push_back(flat);
    end = begin;
  }
}

}  // namespace pipewright
