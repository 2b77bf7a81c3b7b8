#include "profiler/crossing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

namespace autograd = torch::autograd;

/// Nothing comes before it: the engine hands out what arrives and does not call it.
struct Arrival final : autograd::Node {
  autograd::variable_list apply(autograd::variable_list&&) override { return {}; }
};

struct Departure final : autograd::Node {
  Departure(autograd::edge_list edges, std::vector<at::Tensor> gradients)
      : Node(std::move(edges)), gradients(std::move(gradients)) {}
  autograd::variable_list apply(autograd::variable_list&&) override { return std::move(gradients); }

  std::vector<at::Tensor> gradients;
};

at::Tensor placed(const c10::Storage& storage, at::ScalarType dtype, at::IntArrayRef sizes,
                  at::IntArrayRef strides, int64_t offset) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype).device(storage.device()));
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

}  // namespace

at::Tensor bytes_around(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  return placed(tensor.storage(), at::kByte, {bytes}, {1}, 0);
}

CrossingValue crossing_value(const at::Tensor& tensor, std::shared_ptr<CrossingMemory> memory,
                             const std::string& owner) {
  return {std::move(memory),
          tensor.scalar_type(),
          tensor.sizes().vec(),
          tensor.strides().vec(),
          tensor.storage_offset(),
          tensor.requires_grad(),
          owner};
}

at::Tensor value_in(const at::Tensor& bytes, const CrossingValue& value) {
  return placed(bytes.storage(), value.dtype, value.sizes, value.strides, value.offset);
}

autograd::Edge arrive(const at::Tensor& value) {
  autograd::set_history(value, std::make_shared<Arrival>());
  return autograd::impl::gradient_edge(value);
}

at::Tensor depart(const std::vector<at::Tensor>& leaving, std::vector<at::Tensor> gradients) {
  PW_CHECK_EQ(leaving.size(), gradients.size());
  PW_CHECK(!leaving.empty(), "a backward that begins from nothing");
  autograd::edge_list edges;
  for (const at::Tensor& tensor : leaving) edges.push_back(autograd::impl::gradient_edge(tensor));
  at::Tensor end = at::zeros({}, at::TensorOptions().device(leaving[0].device()));
  autograd::set_history(end, std::make_shared<Departure>(std::move(edges), std::move(gradients)));
  return end;
}

std::set<const autograd::Node*> functions_behind(const at::Tensor& tensor) {
  std::set<const autograd::Node*> seen;
  std::vector<const autograd::Node*> to_visit = {tensor.grad_fn().get()};
  while (!to_visit.empty()) {
    const autograd::Node* const function = to_visit.back();
    to_visit.pop_back();
    if (!function || !seen.insert(function).second) continue;
    for (const autograd::Edge& edge : function->next_edges()) to_visit.push_back(edge.function.get());
  }
  return seen;
}

}  // namespace pipewright
