#include "runtime/stage_program.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "graph/error.h"
#include "models/initialise.h"

namespace pipewright {
namespace {

std::vector<std::string> segment_outputs(const Graph& graph, const std::vector<StageInterface>& stages,
                                         size_t index) {
  return index + 1 < stages.size() ? stages[index].sent : graph.outputs;
}

std::vector<MessagePart> parts_of(const Graph& graph, const std::vector<std::string>& names,
                                  const std::vector<bool>* wanted) {
  std::vector<MessagePart> parts;
  for (size_t i = 0; i < names.size(); ++i) {
    if (wanted && !(*wanted)[i]) continue;
    const TensorType& type = graph.values.at(names[i]);
    parts.push_back({type.shape, scalar_type_of(type.dtype)});
  }
  return parts;
}

}  // namespace

StageProgram::StageProgram(const Graph& graph, const std::vector<StageInterface>& stages, size_t index)
    : segment_(graph, stages[index].nodes, segment_outputs(graph, stages, index)),
      last_(index + 1 == stages.size()),
      fields_(stages[index].fields),
      received_(stages[index].received),
      sent_(stages[index].sent) {
  const auto differentiable = differentiable_values(graph);
  for (const auto& name : received_) received_differentiable_.push_back(differentiable.count(name) > 0);
  for (const auto& name : sent_) sent_differentiable_.push_back(differentiable.count(name) > 0);
  for (size_t i = 0; i < segment_.parameters().size(); ++i) {
    const auto parameter =
        std::find_if(graph.parameters.begin(), graph.parameters.end(),
                     [&](const Parameter& p) { return p.name == segment_.parameters()[i]; });
    if (parameter->trainable) trainable_.push_back(i);
  }
  received_parts_ = parts_of(graph, received_, nullptr);
  sent_parts_ = parts_of(graph, sent_, nullptr);
  received_gradient_parts_ = parts_of(graph, received_, &received_differentiable_);
  sent_gradient_parts_ = parts_of(graph, sent_, &sent_differentiable_);
  if (last_ && graph.outputs.size() > 1) scores_ = 1;
}

Pass StageProgram::forward(std::vector<at::Tensor> received, std::vector<at::Tensor> fields,
                           std::shared_ptr<const WeightVersion> version,
                           const std::vector<at::Tensor>& buffers, RandomKey key) const {
  PW_CHECK_EQ(received.size(), received_.size());
  PW_CHECK_EQ(fields.size(), fields_.size());
  Pass pass;
  for (size_t i = 0; i < received.size(); ++i) {
    received[i] = received[i].detach();
    if (at::GradMode::is_enabled() && received_differentiable_[i]) received[i].requires_grad_(true);
  }
  pass.received = received;

  // The segment asks for its inputs in its own order: received values and fields by name.
  std::vector<at::Tensor> inputs;
  for (const std::string& name : segment_.inputs()) {
    const auto crossing = std::find(received_.begin(), received_.end(), name);
    if (crossing != received_.end()) {
      inputs.push_back(received[static_cast<size_t>(crossing - received_.begin())]);
    } else {
      const auto field = std::find(fields_.begin(), fields_.end(), name);
      PW_CHECK(field != fields_.end(),
               "the segment reads '" << name << "', which is neither received nor a field");
      inputs.push_back(fields[static_cast<size_t>(field - fields_.begin())]);
    }
  }
  received.clear();
  fields.clear();
  auto outputs = segment_.forward(std::move(inputs), version->weights, buffers, key);
  if (last_) {
    pass.loss = outputs[0];
    if (scores_ < outputs.size()) pass.scores = outputs[scores_].detach();
  } else {
    pass.sent = std::move(outputs);
  }
  pass.version = std::move(version);
  return pass;
}

StageGradients StageProgram::backward(Pass pass, std::vector<at::Tensor> sent_gradients) const {
  // Gradient of a value carried through: it meets no node here, so it takes no part in this stage's autograd.
  std::vector<at::Tensor> carried(received_.size());
  torch::autograd::variable_list roots;
  torch::autograd::variable_list root_gradients;
  if (last_) {
    roots.push_back(pass.loss);
    root_gradients.push_back({});
  }
  size_t next = 0;
  for (size_t i = 0; i < sent_.size(); ++i) {
    if (!sent_differentiable_[i]) continue;
    at::Tensor gradient = std::move(sent_gradients[next++]);
    const auto crossing = std::find(received_.begin(), received_.end(), sent_[i]);
    if (crossing != received_.end()) {
      carried[static_cast<size_t>(crossing - received_.begin())] = std::move(gradient);
    } else {
      roots.push_back(pass.sent[i]);
      root_gradients.push_back(std::move(gradient));
    }
  }
  PW_CHECK_EQ(next, sent_gradients.size());

  torch::autograd::variable_list leaves;
  for (size_t i = 0; i < received_.size(); ++i) {
    if (received_differentiable_[i]) leaves.push_back(pass.received[i]);
  }
  const size_t first_weight = leaves.size();
  for (const size_t i : trainable_) leaves.push_back(pass.version->weights[i]);

  torch::autograd::variable_list gradients(leaves.size());
  if (!roots.empty() && !leaves.empty()) {
    gradients =
        torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false, /*create_graph=*/false,
                              /*allow_unused=*/true);
  }
  StageGradients result;
  size_t leaf = 0;
  for (size_t i = 0; i < received_.size(); ++i) {
    if (!received_differentiable_[i]) continue;
    at::Tensor gradient = std::move(gradients[leaf]);
    if (carried[i].defined()) gradient = gradient.defined() ? gradient + carried[i] : carried[i];
    if (!gradient.defined()) gradient = at::zeros_like(leaves[leaf]);
    result.received.push_back(std::move(gradient));
    ++leaf;
  }
  for (size_t i = first_weight; i < leaves.size(); ++i) {
    result.weights.push_back(gradients[i].defined() ? std::move(gradients[i]) : at::zeros_like(leaves[i]));
  }
  return result;
}

}  // namespace pipewright
