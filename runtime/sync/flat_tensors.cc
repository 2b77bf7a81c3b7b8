#include "runtime/sync/flat_tensors.h"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace pipewright {
namespace {

// By dtype, in the order in which they come first: positions.
std::vector<std::vector<size_t>> by_dtype(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const std::vector<size_t>& group) {
      return tensors[group.front()].scalar_type() == tensors[i].scalar_type();
    });
    (same == groups.end() ? groups.emplace_back() : *same).push_back(i);
  }
  return groups;
}

}  // namespace

std::vector<at::Tensor> flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flats;
  for (const std::vector<size_t>& group : by_dtype(tensors)) {
    std::vector<at::Tensor> parts;
    for (const size_t i : group) parts.push_back(tensors[i].reshape({-1}));
    flats.push_back(at::cat(parts));
  }
  return flats;
}

std::vector<at::Tensor> unflatten(const std::vector<at::Tensor>& flats, const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> tensors(like.size());
  const auto groups = by_dtype(like);
  for (size_t g = 0; g < groups.size(); ++g) {
    int64_t begin = 0;
    for (const size_t i : groups[g]) {
      tensors[i] = flats[g].narrow(0, begin, like[i].numel()).view(like[i].sizes());
      begin += like[i].numel();
    }
  }
  return tensors;
}

}  // namespace pipewright
