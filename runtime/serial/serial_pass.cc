#include "runtime/serial/serial_pass.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/alignment.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "models/memory/memory_meter.h"

namespace pipewright {

namespace {

// A copy of it would give the same bits: kernels sum in another order where memory has gaps or begins
// elsewhere.
bool is_as_received(const at::Tensor& value) {
  return value.is_non_overlapping_and_dense() &&
         reinterpret_cast<uintptr_t>(value.const_data_ptr()) % c10::gAlignment == 0;
}

}  // namespace

SerialPass::SerialPass(std::vector<SerialStage>& stages, const std::set<std::string>& differentiable,
                       const SampleSplit& split, int64_t k)
    : stages_(stages), differentiable_(differentiable), split_(split), k_(k), parts_(stages.size()) {}

at::Tensor SerialPass::gathered(const std::vector<Crossing>& crossing, const std::string& value,
                                SampleRange samples) const {
  Tensors pieces;
  const int64_t dimension = split_.any() ? split_.dimension_of(value) : SampleSplit::kWhole;
  for (const Crossing& each : crossing) {
    const SampleRange both = overlap(each.samples, samples);
    if (both.size() == 0) continue;
    const at::Tensor piece = rows_of(each.values.at(value), dimension, each.samples, both).detach();
    pieces.push_back(is_as_received(piece) ? piece : piece.clone());
  }
  return joined(pieces, dimension);
}

double SerialPass::forward(const MinibatchFields& fields, const RandomKey& key,
                           const std::function<LossWeight(SampleRange)>& weight_of) {
  std::vector<Crossing> crossing;  // what the next stage receives
  for (size_t s = 0; s < stages_.size(); ++s) {
    const SerialStage& stage = stages_[s];
    std::vector<Crossing> sent;
    for (const SerialStage::Part& of : stage.parts_of(k_)) {
      parts_[s].push_back(forward_of(s, of, crossing, fields, key));
      const Tensors& outputs = parts_[s].back().outputs;
      sent.push_back({of.samples, {}});
      for (size_t i = 0; i < stage.interface.sent.size(); ++i)
        sent.back().values[stage.interface.sent[i]] = outputs[i];
    }
    crossing = std::move(sent);
  }
  double loss = 0;
  for (Part& part : parts_.back()) {
    part.loss_weight = weight_of(part.of.samples);
    const double counts = part.loss_weight.in_minibatch;
    if (counts != 0) loss += counts * part.outputs[0].item<double>();
  }
  return loss;
}

SerialPass::Part SerialPass::forward_of(size_t s, const SerialStage::Part& of,
                                        const std::vector<Crossing>& crossing, const MinibatchFields& fields,
                                        RandomKey key) const {
  SerialStage& stage = stages_[s];
  const MemoryScope scope(MemoryPurpose::kActivations);
  Part part;
  part.of = of;
  for (const std::string& name : stage.interface.received) {
    at::Tensor leaf = gathered(crossing, name, of.samples);
    if (differentiable_.count(name)) leaf.requires_grad_(true);
    part.received[name] = leaf;
  }
  const bool whole = stage.ranges.empty();
  Tensors inputs;
  for (const std::string& name : of.segment->inputs()) {
    if (part.received.count(name) > 0) {
      inputs.push_back(part.received.at(name));
    } else if (whole) {
      inputs.push_back(fields.at(name));
    } else {
      inputs.push_back(rows_of(fields.at(name), split_.dimension_of(name), {0, stage.samples}, of.samples)
                           .clone(at::MemoryFormat::Contiguous));
    }
  }
  key.first_sample = of.samples.begin;
  part.weights = stage.weights_of(k_);
  part.outputs = of.segment->forward(inputs, part.weights, stage.buffers[of.replica], key);
  return part;
}

void SerialPass::backward() {
  std::vector<Crossing> gradients;  // what comes from behind the cut
  for (size_t s = stages_.size(); s-- > 0;) {
    std::vector<Crossing> upstream;
    for (const Part& part : parts_[s]) upstream.push_back({part.of.samples, backward_of(s, part, gradients)});
    gradients = std::move(upstream);
    parts_[s].clear();
  }
}

MinibatchFields SerialPass::backward_of(size_t s, const Part& part, const std::vector<Crossing>& gradients) {
  SerialStage& stage = stages_[s];
  const MemoryScope scope(MemoryPurpose::kGradients);
  const MinibatchFields& received = part.received;
  const Tensors& outputs = part.outputs;
  Tensors roots, root_gradients;
  const auto add_root = [&](const at::Tensor& root, const at::Tensor& gradient) {
    if (!root.requires_grad()) return;
    roots.push_back(root);
    root_gradients.push_back(gradient);
  };
  const double begins_with = part.loss_weight.gradient;
  if (s + 1 == stages_.size() && begins_with != 0)
    add_root(outputs[0],
             begins_with == 1 ? at::ones_like(outputs[0]) : at::full_like(outputs[0].detach(), begins_with));
  const auto& sent = stage.interface.sent;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (differentiable_.count(sent[i]) > 0)
      add_root(received.count(sent[i]) > 0 ? received.at(sent[i]) : outputs[i],
               gathered(gradients, sent[i], part.of.samples));
  }
  std::vector<std::string> names;
  Tensors leaves;
  for (const std::string& name : stage.interface.received) {
    if (!differentiable_.count(name)) continue;
    names.push_back(name);
    leaves.push_back(received.at(name));
  }
  stage.turn_back(k_, part.weights);
  for (const at::Tensor& weight : stage.leaves(part.weights)) leaves.push_back(weight);
  Tensors found(leaves.size());
  if (!roots.empty() && !leaves.empty())
    found = torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  MinibatchFields upstream;
  for (size_t i = 0; i < names.size(); ++i) {
    // As it crosses, it lies in memory as it was made, but for gaps and elements of one place.
    upstream[names[i]] = found[i].defined()
                             ? found[i]
                             : at::zeros(leaves[i].sizes(), leaves[i].options().requires_grad(false));
  }
  Tensors of_weights;
  for (size_t i = names.size(); i < leaves.size(); ++i)
    of_weights.push_back(found[i].defined() ? found[i] : at::zeros_like(leaves[i]));
  stage.add_to_round(part.of.replica, std::move(of_weights));
  return upstream;
}

}  // namespace pipewright
