#include "runtime/checkpoint_state.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <set>

#include "graph/digest.h"
#include "graph/error.h"

namespace pipewright {
namespace {

// Tensors of a checkpoint by name. Files are opened when the first tensor is asked for and compared with the
// manifest once one of theirs is taken.
class CheckpointTensors {
 public:
  explicit CheckpointTensors(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const CheckpointFile& stage : checkpoint.manifest.stages)
      files_.emplace_back(checkpoint.folder / stage.file);
  }

  bool has(const std::string& name) const { return file_with(name) < files_.size(); }

  at::Tensor take(const std::string& name) {
    const size_t i = file_with(name);
    PW_CHECK(i < files_.size(), name << " is not in " << checkpoint_.folder.string());
    if (compared_.insert(i).second) {
      const CheckpointFile& stage = checkpoint_.manifest.stages[i];
      if (digest_of_file(files_[i].path()) != stage.digest)
        throw InputError(files_[i].path().string() + ": is not what was written: its digest differs");
    }
    return files_[i].read(*files_[i].find(name));
  }

 private:
  // Tied parameters are in several files, with equal values: the first counts.
  size_t file_with(const std::string& name) const {
    size_t i = 0;
    while (i < files_.size() && !files_[i].find(name)) ++i;
    return i;
  }

  const Checkpoint& checkpoint_;
  std::vector<SafetensorsFile> files_;
  std::set<size_t> compared_;
};

}  // namespace

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
  StageState state;
  for (const std::string& name : stage.parameters()) state.weights.push_back(tensors.take(name));
  for (const std::string& name : stage.buffers()) state.buffers.push_back(tensors.take(name));
  for (const size_t i : stage.trainable()) {
    const std::string updates = slot_tensor(kUpdatesSlot, stage.parameters()[i]);
    state.optimizer.updates.push_back(tensors.has(updates) ? tensors.take(updates).item<int64_t>() : 0);
    state.updates = std::max(state.updates, state.optimizer.updates.back());
  }
  if (state.updates == 0) return state;
  for (const std::string& slot : slot_names(optimizer)) {
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < stage.trainable().size(); ++i) {
      const at::Tensor& weight = state.weights[stage.trainable()[i]];
      const std::string name = slot_tensor(slot, stage.parameters()[stage.trainable()[i]]);
      const bool there = tensors.has(name);
      if (!there && state.optimizer.updates[i] != 0)
        throw InputError("resume: " + checkpoint.folder.string() + ": has no tensor '" + name + "'");
      values.push_back(there ? tensors.take(name) : at::zeros_like(weight));
      if (!values.back().sizes().equals(weight.sizes())) {
        throw InputError("resume: " + checkpoint.folder.string() + ": '" + name +
                         "' has another shape than the parameter");
      }
    }
    state.optimizer.slots.emplace_back(slot, std::move(values));
  }
  return state;
}

}  // namespace pipewright
