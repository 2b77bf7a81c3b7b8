#include "runtime/serial/serial_stage.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "graph/graph_identity.h"
#include "graph/update_rules.h"
#include "models/definition/frozen.h"
#include "models/initialise.h"
#include "runtime/stage/sample_split.h"

namespace pipewright {

SerialStage::SerialStage(const Model& model, const StageInterface& interface, const Plan& plan, size_t number,
                         const SerialRule& rule, const TrainingRules& rules)
    : interface(interface),
      cycle(cycle_of(plan.stages[number])),
      rule(rule),
      segment(model.graph, interface.nodes,
              number + 1 == plan.stages.size() ? model.graph.outputs : interface.sent, at::kCPU,
              frozen_nodes(model.graph, plan.frozen_layers)),
      samples(samples_of(model.graph)) {
  const Stage& stage = plan.stages[number];
  if (stage.split.size() > 1) {
    ranges = sample_ranges(samples, stage.split);
    for (const SampleRange& range : ranges)
      segments_of_parts.emplace_back(graph_of_part(model, plan, range.size()), interface.nodes,
                                     segment.outputs(), at::kCPU,
                                     frozen_nodes(model.graph, plan.frozen_layers));
  }
  Tensors first;
  for (const std::string& name : segment.parameters()) {
    const auto parameter = std::find_if(model.graph.parameters.begin(), model.graph.parameters.end(),
                                        [&](const Parameter& p) { return p.name == name; });
    if (parameter->trainable) {
      trainable.push_back(first.size());
      // As an optimizer of its own.
      const ParameterSettings own = parameter_settings(rules.optimizer, {name}).front();
      OptimizerSettings settings = rules.optimizer;
      settings.weight_decay = own.weight_decay;
      if (update_rule_facts(settings.name).matrices && !own.matrix) settings.name = "adamw";
      this->rules.push_back(make_update_rule(settings));
      rate_scales.push_back(own.learning_rate_scale);
    }
    first.push_back(initial_parameter(model, name, rules.seed).requires_grad_(parameter->trainable));
  }
  versions[0] = std::move(first);
  for (size_t q = 0; q < stage.ranks.size(); ++q) {
    buffers.emplace_back();
    for (const std::string& name : segment.buffers()) buffers.back().push_back(initial_buffer(model, name));
  }
  sums.resize(stage.ranks.size());
}

void SerialStage::restore(const StageState& state) {
  PW_CHECK_EQ(state.weights.size(), latest().size());
  Tensors weights;
  for (size_t i = 0; i < state.weights.size(); ++i)
    weights.push_back(state.weights[i].detach().clone().requires_grad_(latest()[i].requires_grad()));
  versions.clear();
  versions[state.updates] = std::move(weights);
  for (Tensors& replica : buffers)
    for (size_t b = 0; b < replica.size(); ++b) replica[b] = state.buffers.at(b).clone();
  for (size_t i = 0; i < rules.size(); ++i) {
    UpdateState remembered;
    if (!state.optimizer.updates.empty()) remembered.updates = {state.optimizer.updates[i]};
    for (const auto& [name, slots] : state.optimizer.slots)
      remembered.slots.push_back({name, {slots[i].clone()}});
    rules[i]->restore(std::move(remembered));
  }
}

std::vector<SerialStage::Part> SerialStage::parts_of(int64_t k) const {
  if (ranges.empty()) return {{replica_of(k), {0, samples}, &segment}};
  std::vector<Part> parts;
  for (size_t q = 0; q < ranges.size(); ++q) parts.push_back({q, ranges[q], &segments_of_parts[q]});
  return parts;
}

void SerialStage::begin(int64_t first) {
  first_minibatch = first;
  first_version = latest_version();
}

int64_t SerialStage::version_of(int64_t k) const {
  const int64_t first_round = first_minibatch / rule.round_length;
  const int64_t rounds = k < rule.lag ? 0 : (k - rule.lag) / rule.round_length;
  return first_version + std::max<int64_t>(0, rounds - first_round);
}

Tensors SerialStage::trained() const {
  Tensors weights;
  for (const size_t i : trainable) weights.push_back(latest()[i].detach().clone());
  return weights;
}

void SerialStage::set_trained(const Tensors& weights) {
  for (size_t i = 0; i < weights.size(); ++i)
    versions.rbegin()->second[trainable[i]] = weights[i].clone().requires_grad_(true);
}

Tensors SerialStage::leaves(const Tensors& version) const {
  Tensors leaves;
  for (const size_t i : trainable) leaves.push_back(version[i]);
  return leaves;
}

void SerialStage::forget_before(int64_t k) {
  const int64_t oldest = std::min(version_of(k), latest_version());
  versions.erase(versions.begin(), versions.lower_bound(oldest));
}

void SerialStage::end_round(int64_t begin, int64_t end) {
  gradient.clear();
  const Tensors weights = leaves(latest());
  for (size_t i = 0; i < weights.size(); ++i) {
    at::Tensor sum;
    for (const Tensors& replica : sums) {
      const at::Tensor part = replica.empty() ? at::zeros_like(weights[i].detach()) : replica[i];
      sum = sum.defined() ? sum + part : part;
    }
    gradient.push_back(end - begin == 1 ? sum : sum / static_cast<double>(end - begin));
  }
  for (Tensors& replica : sums) replica.clear();
}

void SerialStage::update(const Tensors& gradient, double rate) {
  Tensors next = latest();
  for (size_t i = 0; i < trainable.size(); ++i) {
    at::Tensor& weight = next[trainable[i]];
    const Tensors stepped = rules[i]->step({weight}, {gradient[i]}, rate * rate_scales[i]);
    weight = stepped.front().detach().requires_grad_(true);
  }
  versions[latest_version() + 1] = std::move(next);
}

void SerialStage::average_buffers() {
  if (buffers.size() == 1) return;
  for (size_t b = 0; b < segment.buffers().size(); ++b) {
    if (!averages(b)) continue;
    at::Tensor sum = buffers[0][b];
    for (size_t q = 1; q < buffers.size(); ++q) sum = sum + buffers[q][b];
    for (Tensors& replica : buffers) replica[b] = sum / static_cast<double>(buffers.size());
  }
}

}  // namespace pipewright
