#include "runtime/checkpoint/checkpoint_state.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "graph/error.h"
#include "models/memory/memory_meter.h"
#include "runtime/checkpoint/checkpoint_tensors.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {
NamedTensors stage_tensors(const StageProgram& stage, const StageState& state) {
  NamedTensors tensors;
  for (size_t i = 0; i < stage.parameters().size(); ++i) {
    PW_CHECK(stage.parameters()[i].rfind(kOptimizerPrefix, 0) != 0,
             "a parameter named " << stage.parameters()[i]);
    tensors.emplace_back(stage.parameters()[i], state.weights[i]);
  }
  for (size_t i = 0; i < stage.buffers().size(); ++i)
    tensors.emplace_back(stage.buffers()[i], state.buffers[i]);
  for (size_t i = 0; i < state.optimizer.updates.size(); ++i) {
    const std::string& name = stage.parameters()[stage.trainable()[i]];
    tensors.emplace_back(slot_tensor(kUpdatesSlot, name),
                         at::scalar_tensor(state.optimizer.updates[i], at::TensorOptions(at::kLong)));
    for (const auto& [slot, values] : state.optimizer.slots)
      tensors.emplace_back(slot_tensor(slot, name), values[i]);
  }
  return tensors;
}

StageState load_stage_state(const Checkpoint& checkpoint, const StageProgram& stage,
                            const OptimizerSettings& optimizer) {
  CheckpointTensors tensors(checkpoint);
  return load_stage_state(tensors, "resume: " + checkpoint.folder.string(), stage, optimizer);
}

StageState load_stage_state(TensorsByName& tensors, const std::string& where, const StageProgram& stage,
                            const OptimizerSettings& optimizer) {
  StageState state;
  {
    const MemoryScope scope(MemoryPurpose::kWeights);
    for (const std::string& name : stage.parameters()) state.weights.push_back(tensors.take(name));
  }
  for (const std::string& name : stage.buffers()) state.buffers.push_back(tensors.take(name));
  for (const size_t i : stage.trainable()) {
    const std::string updates = slot_tensor(kUpdatesSlot, stage.parameters()[i]);
    state.optimizer.updates.push_back(tensors.has(updates) ? tensors.take(updates).item<int64_t>() : 0);
    state.updates = std::max(state.updates, state.optimizer.updates.back());
  }
  if (state.updates == 0) return state;
  const MemoryScope scope(MemoryPurpose::kOptimizer);
  const std::vector<std::string> slots = slot_names(optimizer);
  for (size_t number = 0; number < slots.size(); ++number) {
    const std::string& slot = slots[number];
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < stage.trainable().size(); ++i) {
      const at::Tensor& weight = state.weights[stage.trainable()[i]];
      const std::string& parameter = stage.parameters()[stage.trainable()[i]];
      const std::string name = slot_tensor(slot, parameter);
      const auto shape = slot_shape(optimizer, number, parameter, weight.sizes().vec());
      const bool there = tensors.has(name);
      if (!there && state.optimizer.updates[i] != 0)
        throw InputError(where + ": has no tensor '" + name + "'");
      values.push_back(there ? tensors.take(name) : at::zeros(shape, weight.options()));
      if (values.back().sizes() != shape) {
        throw InputError(where + ": '" + name + "' has another shape than the parameter");
      }
    }
    state.optimizer.slots.emplace_back(slot, std::move(values));
  }
  return state;
}

void add_in_flight_state(const Checkpoint& checkpoint, int64_t stage, int64_t replica,
                         const StageProgram& program, StageState& state) {
  CheckpointTensors tensors(checkpoint);
  const CheckpointStage& written = checkpoint.manifest.stages.at(static_cast<size_t>(stage));
  state.updates = written.updates;
  if (!written.replicas.empty()) {
    for (size_t i = 0; i < state.buffers.size(); ++i) {
      state.buffers[i] = tensors.buffer_of(stage, replica, program.buffers()[i]);
    }
  }
  const MemoryScope scope(MemoryPurpose::kVersions);
  for (const auto& [number, file] : written.versions) {
    std::vector<at::Tensor>& trainable = state.older[number];
    for (const size_t i : program.trainable())
      trainable.push_back(tensors.weight_of(stage, number, program.parameters()[i]));
  }
}

namespace {

bool same_pipeline(const Plan& a, const Plan& b) {
  const auto same_stage = [](const Stage& x, const Stage& y) {
    return x.nodes == y.nodes && x.ranks.size() == y.ranks.size() && x.in_flight == y.in_flight &&
           x.shares == y.shares && x.split == y.split;
  };
  return a.schedule == b.schedule && a.weights == b.weights && a.microbatches == b.microbatches &&
         std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(), same_stage);
}

}  // namespace

int64_t pipeline_began(const CheckpointManifest& manifest, const Plan& plan, int64_t gradient_accumulation,
                       int64_t end) {
  const int64_t next = manifest.next_minibatch;
  const bool same =
      same_pipeline(manifest.plan, plan) && manifest.run.gradient_accumulation == gradient_accumulation;
  if (!same || end <= next) return next;
  const PipelineShape shape = shape_of(plan, gradient_accumulation);
  for (int64_t s = 0; s < shape.stages(); ++s) {
    const CheckpointStage& stage = manifest.stages.at(static_cast<size_t>(s));
    const ReadVersions read(plan.schedule, shape, s, {next, end - next}, manifest.pipeline_began);
    for (int64_t k = next; k < end && read.of(k) < 0; ++k) {
      if (stage.versions.count(read.number_in_checkpoint(k, stage.updates)) == 0) return next;
    }
  }
  return manifest.pipeline_began;
}

}  // namespace pipewright
