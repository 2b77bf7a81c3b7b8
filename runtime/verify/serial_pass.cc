#include "runtime/verify/serial_pass.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

namespace pipewright {

SerialPass::SerialPass(std::vector<SerialStage>& stages, const std::set<std::string>& differentiable,
                       int64_t k)
    : stages_(stages),
      differentiable_(differentiable),
      k_(k),
      received_(stages.size()),
      outputs_(stages.size()) {}

double SerialPass::forward(const MinibatchFields& fields, const RandomKey& key) {
  MinibatchFields crossing;  // by value: what the next stage receives
  for (size_t s = 0; s < stages_.size(); ++s) {
    SerialStage& stage = stages_[s];
    for (const std::string& name : stage.interface.received) {
      at::Tensor leaf = crossing.at(name).detach().clone();
      if (differentiable_.count(name)) leaf.requires_grad_(true);
      received_[s][name] = leaf;
    }
    Tensors inputs;
    for (const std::string& name : stage.segment.inputs())
      inputs.push_back(received_[s].count(name) ? received_[s].at(name) : fields.at(name));
    outputs_[s] = stage.segment.forward(inputs, stage.versions.at(stage.version_of(k_)),
                                        stage.buffers[stage.replica_of(k_)], key);
    for (size_t i = 0; i < stage.interface.sent.size(); ++i)
      crossing[stage.interface.sent[i]] = outputs_[s][i];
  }
  return outputs_.back()[0].item<double>();
}

void SerialPass::backward() {
  MinibatchFields gradients;  // what comes from behind the cut
  for (size_t s = stages_.size(); s-- > 0;) gradients = backward_of(s, gradients);
}

MinibatchFields SerialPass::backward_of(size_t s, const MinibatchFields& gradients) {
  SerialStage& stage = stages_[s];
  const MinibatchFields& received = received_[s];
  const Tensors& outputs = outputs_[s];
  Tensors roots, root_gradients;
  const auto add_root = [&](const at::Tensor& root, const at::Tensor& gradient) {
    if (!root.requires_grad()) return;
    roots.push_back(root);
    root_gradients.push_back(gradient);
  };
  if (s + 1 == stages_.size()) add_root(outputs[0], at::ones_like(outputs[0]));
  const auto& sent = stage.interface.sent;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (differentiable_.count(sent[i]) > 0)
      add_root(received.count(sent[i]) > 0 ? received.at(sent[i]) : outputs[i], gradients.at(sent[i]));
  }
  std::vector<std::string> names;
  Tensors leaves;
  for (const std::string& name : stage.interface.received) {
    if (!differentiable_.count(name)) continue;
    names.push_back(name);
    leaves.push_back(received.at(name));
  }
  for (const at::Tensor& weight : stage.leaves(stage.versions.at(stage.version_of(k_))))
    leaves.push_back(weight);
  Tensors found(leaves.size());
  if (!roots.empty() && !leaves.empty())
    found = torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  MinibatchFields upstream;
  for (size_t i = 0; i < names.size(); ++i) {
    // As it crosses, it lies in memory as it was made, but for gaps and elements of one place.
    upstream[names[i]] =
        found[i].defined() ? found[i].clone() : at::zeros(leaves[i].sizes(), leaves[i].options());
  }
  Tensors of_weights;
  for (size_t i = names.size(); i < leaves.size(); ++i)
    of_weights.push_back(found[i].defined() ? found[i] : at::zeros_like(leaves[i]));
  add_to_round(stage, of_weights);
  return upstream;
}

void SerialPass::add_to_round(SerialStage& stage, const Tensors& gradients) {
  Tensors& sum = stage.sums[stage.replica_of(k_)];
  if (sum.empty()) {
    sum = gradients;
    return;
  }
  for (size_t i = 0; i < gradients.size(); ++i) sum[i] = sum[i] + gradients[i];
}

}  // namespace pipewright
