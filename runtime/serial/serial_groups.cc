#include "runtime/serial/serial_groups.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "graph/error.h"
#include "graph/update_rules.h"

namespace pipewright {
namespace {

using Stages = std::vector<SerialStage*>;  // the same one of several pipelines

Tensors clones(const Tensors& tensors) {
  Tensors cloned;
  for (const at::Tensor& tensor : tensors) cloned.push_back(tensor.detach().clone());
  return cloned;
}

// Added up in the order of the stages.
at::Tensor mean(const Stages& stages, const std::function<at::Tensor(SerialStage&)>& of) {
  at::Tensor sum;
  for (SerialStage* stage : stages) sum = sum.defined() ? sum + of(*stage).detach() : of(*stage).detach();
  return sum / static_cast<double>(stages.size());
}

// Of trainable parameter i. A pipeline that has made no update yet has no slots: zeros.
UpdateState mean_update_state(const Stages& stages, size_t i, const OptimizerSettings& optimizer,
                              int64_t updates) {
  UpdateState averaged;
  averaged.updates = {updates};
  for (const std::string& name : slot_names(optimizer)) {
    const size_t slot = averaged.slots.size();
    averaged.slots.push_back(
        {name, {mean(stages, [&](SerialStage& stage) {
           for (const auto& [own, slots] : stage.rules[i]->state().slots)
             if (own == name) return slots[0];
           const at::Tensor weight = stage.latest()[stage.trainable[i]].detach();
           return at::zeros(slot_shape(optimizer, slot, stage.trainable_name(i), weight.sizes().vec()),
                            weight.options());
         })}});
  }
  return averaged;
}

void average_drained_stage(const Stages& stages, const OptimizerSettings& rule) {
  const SerialStage& shape = *stages.front();
  int64_t updates = 0;
  for (const SerialStage* stage : stages) updates = std::max(updates, stage->latest_version());
  Tensors weights = shape.latest(), buffers = shape.buffers[0];
  for (const size_t i : shape.trainable)
    weights[i] = mean(stages, [&](SerialStage& stage) { return stage.latest()[i]; });
  for (size_t b = 0; b < buffers.size(); ++b)
    if (shape.averages(b)) buffers[b] = mean(stages, [&](SerialStage& stage) { return stage.buffers[0][b]; });
  std::vector<UpdateState> optimizer;
  for (size_t i = 0; i < shape.trainable.size() && updates > 0; ++i)
    optimizer.push_back(mean_update_state(stages, i, rule, updates));
  for (SerialStage* stage : stages) {
    Tensors own = clones(weights);
    for (const size_t i : stage->trainable) own[i].requires_grad_(true);
    stage->versions.clear();
    stage->versions[updates] = std::move(own);
    for (size_t b = 0; b < buffers.size(); ++b)
      if (stage->averages(b)) stage->buffers[0][b] = buffers[b].clone();
    for (size_t i = 0; i < optimizer.size(); ++i) {
      UpdateState remembered = optimizer[i];
      for (auto& [name, slots] : remembered.slots) slots[0] = slots[0].clone();
      stage->rules[i]->restore(std::move(remembered));
    }
  }
}

}  // namespace

SerialGroups::SerialGroups(GroupsByStage groups, size_t pipelines)
    : groups_(std::move(groups)), next_(groups_.size()), here_(groups_.size()) {
  for (size_t s = 0; s < groups_.size(); ++s) {
    here_[s].resize(groups_[s].size());
    for (const std::vector<int64_t>& group : groups_[s])
      for (const int64_t member : group)
        if (member < 0 || member >= static_cast<int64_t>(pipelines))
          throw InputError("a group of stage " + std::to_string(s) + " has pipeline " +
                               std::to_string(member) + " of " + std::to_string(pipelines),
                           "Do the groups belong to another run?");
  }
}

void SerialGroups::updated(SerialPipelines& pipelines, size_t pipeline, size_t s) {
  if (groups_.empty()) return;
  const size_t group = next_group(pipeline, s);
  const std::vector<int64_t>& members = groups_[s][group];
  pipelines[pipeline]->stage(s).awaits_group = true;
  if (++here_[s][group] < members.size()) return;
  const at::NoGradGuard no_grad;
  Stages stages;
  for (const int64_t member : members) stages.push_back(&pipelines[static_cast<size_t>(member)]->stage(s));
  for (const size_t i : stages.front()->trainable) {
    const at::Tensor averaged = mean(stages, [&](SerialStage& stage) { return stage.latest()[i]; });
    for (SerialStage* stage : stages)
      stage->versions.rbegin()->second[i] = averaged.clone().requires_grad_(true);
  }
  for (SerialStage* stage : stages) stage->awaits_group = false;
}

size_t SerialGroups::next_group(size_t pipeline, size_t s) {
  if (s < groups_.size()) {
    size_t& next = next_[s][pipeline];
    while (next < groups_[s].size()) {
      const std::vector<int64_t>& group = groups_[s][next++];
      if (std::find(group.begin(), group.end(), static_cast<int64_t>(pipeline)) != group.end())
        return next - 1;
    }
  }
  throw InputError("the groups of stage " + std::to_string(s) + " end before the updates of pipeline " +
                       std::to_string(pipeline),
                   "Do they belong to another run?");
}

void average_drained(SerialPipelines& pipelines) {
  const at::NoGradGuard no_grad;
  const OptimizerSettings& rule = pipelines.front()->rules().optimizer;
  for (size_t s = 0; s < pipelines.front()->stage_count(); ++s) {
    Stages stages;
    for (const auto& pipeline : pipelines) stages.push_back(&pipeline->stage(s));
    average_drained_stage(stages, rule);
  }
}

}  // namespace pipewright
