#include "runtime/serial/serial_stage.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "graph/graph_identity.h"
#include "graph/update_rules.h"
#include "models/definition/frozen.h"
#include "models/initialise.h"
#include "models/memory/memory_meter.h"
#include "runtime/stage/sample_split.h"
#include "runtime/update/ownership.h"

namespace pipewright {

SerialStage::SerialStage(const Model& model, const StageInterface& interface, const Plan& plan, size_t number,
                         const SerialRule& rule, const TrainingRules& rules)
    : interface(interface),
      cycle(cycle_of(plan.stages[number])),
      rule(rule),
      segment(model.graph, interface.nodes,
              number + 1 == plan.stages.size() ? model.graph.outputs : interface.sent, at::kCPU,
              frozen_nodes(model.graph, plan.frozen_layers)),
      samples(samples_of(model.graph)),
      optimizer(rules.optimizer) {
  const Stage& stage = plan.stages[number];
  if (stage.split.size() > 1) {
    ranges = sample_ranges(samples, stage.split);
    for (const SampleRange& range : ranges)
      segments_of_parts.emplace_back(graph_of_part(model, plan, range.size()), interface.nodes,
                                     segment.outputs(), at::kCPU,
                                     frozen_nodes(model.graph, plan.frozen_layers));
  }
  Tensors first;
  const MemoryScope scope(MemoryPurpose::kWeights);
  for (const std::string& name : segment.parameters()) {
    const auto parameter = std::find_if(model.graph.parameters.begin(), model.graph.parameters.end(),
                                        [&](const Parameter& p) { return p.name == name; });
    if (parameter->trainable) {
      trainable.push_back(first.size());
      // As an optimizer of its own.
      const ParameterSettings own = parameter_settings(rules.optimizer, {name}).front();
      OptimizerSettings settings = rules.optimizer;
      settings.weight_decay = own.weight_decay;
      const bool matrices = update_rule_facts(settings.name).wholes == WholeSteps::kMatrices;
      if (matrices && !own.matrix) settings.name = "adamw";
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
  const MemoryScope scope(MemoryPurpose::kWeights);
  for (size_t i = 0; i < state.weights.size(); ++i)
    weights.push_back(state.weights[i].detach().clone().requires_grad_(latest()[i].requires_grad()));
  versions.clear();
  predictions.clear();
  for (const auto& [number, older] : state.older) {
    if (rule.predicts) {
      for (const at::Tensor& weight : older) predictions[number].push_back(weight.clone());
      continue;
    }
    versions[number] = weights;
    for (size_t i = 0; i < trainable.size(); ++i)
      versions[number][trainable[i]] = older.at(i).detach().clone().requires_grad_(true);
  }
  versions[state.updates] = std::move(weights);
  for (size_t q = 0; q < buffers.size(); ++q) set_buffers(q, state.buffers);
  for (size_t i = 0; i < rules.size(); ++i) {
    UpdateState remembered;
    if (!state.optimizer.updates.empty()) remembered.updates = {state.optimizer.updates[i]};
    for (const auto& [name, slots] : state.optimizer.slots)
      remembered.slots.push_back({name, {slots[i].clone()}});
    rules[i]->restore(std::move(remembered));
  }
}

void SerialStage::set_buffers(size_t q, const Tensors& values) {
  for (size_t b = 0; b < buffers[q].size(); ++b) buffers[q][b] = values.at(b).clone();
}

StageState SerialStage::state_before(int64_t k, int64_t end, size_t q) const {
  StageState state{latest_version(), latest(), {}, {}, {}};
  for (const at::Tensor& buffer : buffers[q]) state.buffers.push_back(buffer.clone());
  for (; k < end && version_of(k) < latest_version(); ++k) {
    if (rule.predicts)
      state.older[first_reader(k)] = predictions.at(first_reader(k));
    else if (state.older.count(version_of(k)) == 0)
      state.older[version_of(k)] = leaves(versions.at(version_of(k)));
  }
  const std::vector<std::string> names = slot_names(optimizer);
  for (size_t i = 0; i < rules.size(); ++i) {
    const UpdateState own = rules[i]->state();
    if (own.updates.empty()) return state;  // and so with all
    state.optimizer.updates.push_back(own.updates[0]);
    state.optimizer.slots.resize(names.size());
    for (size_t slot = 0; slot < names.size(); ++slot) {
      state.optimizer.slots[slot].first = names[slot];
      state.optimizer.slots[slot].second.push_back(own.slots.at(slot).second[0]);
    }
  }
  return state;
}

std::vector<SerialStage::Part> SerialStage::parts_of(int64_t k) const {
  if (ranges.empty()) return {{replica_of(k), {0, samples}, &segment}};
  std::vector<Part> parts;
  for (size_t q = 0; q < ranges.size(); ++q) parts.push_back({q, ranges[q], &segments_of_parts[q]});
  return parts;
}

void SerialStage::begin(int64_t first, int64_t end, int64_t began, std::function<double(int64_t)> rate) {
  first_minibatch = began;
  first_version = latest_version() - (first / rule.round_length - began / rule.round_length);
  span_first = first;
  span_end = end;
  rate_of = std::move(rate);
  if (began == first) predictions.clear();
  predict(first);
}

int64_t SerialStage::first_reader(int64_t k) const {
  const int64_t read = version_of(k), found = backward_version_of(k);
  while (k > span_first && version_of(k - 1) == read && backward_version_of(k - 1) == found) --k;
  return k;
}

void SerialStage::predict(int64_t next) {
  if (!rule.predicts) return;
  const MemoryScope scope(MemoryPurpose::kVersions);
  for (int64_t k = next; k < span_end && version_of(k) <= latest_version(); ++k) {
    if (version_of(k) < latest_version() || !is_predicted(k) || first_reader(k) != k) continue;
    const int64_t updates = backward_version_of(k) - version_of(k);
    Tensors& predicted = predictions[k];
    predicted.clear();
    for (size_t i = 0; i < trainable.size(); ++i) {
      const at::Tensor weight = latest()[trainable[i]].detach();
      predicted.push_back(at::empty_like(weight));
      rules[i]->predict({weight}, rate_of(k) * rate_scales[i], updates, {predicted.back()});
    }
  }
}

int64_t SerialStage::version_behind(int64_t k, int64_t lag) const {
  const int64_t first_round = first_minibatch / rule.round_length;
  const int64_t rounds = k < lag ? 0 : (k - lag) / rule.round_length;
  return first_version + std::max<int64_t>(0, rounds - first_round);
}

Tensors SerialStage::weights_of(int64_t k) const {
  Tensors weights = versions.at(rule.predicts ? backward_version_of(k) : version_of(k));
  if (version_of(k) == backward_version_of(k)) return weights;
  const MemoryScope scope(MemoryPurpose::kVersions);
  for (size_t i = 0; i < trainable.size(); ++i) {
    at::Tensor& weight = weights[trainable[i]];
    weight =
        (rule.predicts ? predictions.at(first_reader(k))[i] : weight).detach().clone().requires_grad_(true);
  }
  return weights;
}

void SerialStage::turn_back(int64_t k, const Tensors& weights) const {
  if (version_of(k) == backward_version_of(k)) return;
  // Below autograd, which would refuse a backward whose weights are no longer what its forward read.
  for (const size_t i : trainable)
    weights[i].variable_data().copy_(versions.at(backward_version_of(k))[i].detach());
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
  if (rule.predicts)
    while (!predictions.empty() && predictions.begin()->first < first_reader(k))
      predictions.erase(predictions.begin());
  const int64_t read = rule.predicts ? backward_version_of(k) : version_of(k);
  const int64_t oldest = std::min(read, latest_version());
  while (versions.begin()->first < oldest) {
    Tensors dead = std::move(versions.extract(versions.begin()).mapped());
    spare.clear();
    for (const size_t i : trainable) spare.push_back(unshared(dead[i]) ? std::move(dead[i]) : at::Tensor());
  }
}

void SerialStage::add_to_round(size_t replica, Tensors gradients) {
  RoundSum& sum = sums[replica];
  if (sum.gradients.empty()) {
    sum = {std::move(gradients), false};
    return;
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (sum.is_sum)
      sum.gradients[i].add_(gradients[i]);
    else
      sum.gradients[i] = sum.gradients[i] + gradients[i];
  }
  sum.is_sum = true;
}

void SerialStage::end_round(int64_t begin, int64_t end) {
  gradient.clear();
  const Tensors weights = leaves(latest());
  for (size_t i = 0; i < weights.size(); ++i) {
    RoundSum all;
    for (const RoundSum& replica : sums) {
      const at::Tensor part =
          replica.gradients.empty() ? at::zeros_like(weights[i].detach()) : replica.gradients[i];
      if (all.gradients.empty()) {
        all = {{part}, replica.is_sum};
      } else if (all.is_sum) {
        all.gradients[0].add_(part);
      } else {
        all = {{all.gradients[0] + part}, true};
      }
    }
    const auto minibatches = static_cast<double>(end - begin);
    if (end - begin == 1)
      gradient.push_back(all.gradients[0]);
    else
      gradient.push_back(all.is_sum ? all.gradients[0].div_(minibatches) : all.gradients[0] / minibatches);
  }
  for (RoundSum& replica : sums) replica = {};
}

void SerialStage::update(const Tensors& gradient, double rate, int64_t delay, int64_t next) {
  forget_before(next);
  // Nobody will read the latest as it is: it is changed in place, but for what somebody else holds.
  const bool is_over = (rule.predicts ? backward_version_of(next) : version_of(next)) > latest_version();
  const int64_t number = latest_version() + 1;
  Tensors weights = is_over ? std::move(versions.extract(versions.begin()).mapped()) : latest();
  const MemoryScope scope(MemoryPurpose::kVersions);
  for (size_t i = 0; i < trainable.size(); ++i) {
    at::Tensor& weight = weights[trainable[i]];
    at::Tensor place;
    if (is_over && unshared(weight)) {
      place = weight;
    } else if (i < spare.size()) {
      place = std::exchange(spare[i], {});
    }
    weight = rules[i]->step({weight}, {gradient[i]}, rate * rate_scales[i], {place}, {}, delay).front();
  }
  versions[number] = std::move(weights);
  predict(next);
}

std::optional<size_t> SerialStage::not_finite() const {
  for (size_t i = rules.size(); i-- > 0;)
    if (rules[i]->not_finite()) return i;
  return std::nullopt;
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
