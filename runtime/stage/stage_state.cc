#include "runtime/stage/stage_state.h"

#include "models/initialise.h"
#include "models/memory/memory_meter.h"
#include "runtime/stage/stage_program.h"

namespace pipewright {

StageState first_state(const Model& model, const StageProgram& program, uint64_t seed, at::Device device) {
  StageState state;
  {
    const MemoryScope scope(MemoryPurpose::kWeights);
    for (const std::string& name : program.parameters())
      state.weights.push_back(initial_parameter(model, name, seed).to(device));
  }
  const MemoryScope scope(MemoryPurpose::kOther);
  for (const std::string& name : program.buffers())
    state.buffers.push_back(initial_buffer(model, name).to(device));
  return state;
}

void move_to(at::Device device, StageState& state) {
  const auto move = [&](std::vector<at::Tensor>& tensors) {
    for (at::Tensor& tensor : tensors) tensor = tensor.detach().to(device);
  };
  move(state.weights);
  move(state.buffers);
  for (auto& [name, slots] : state.optimizer.slots) move(slots);
  for (auto& [number, trainable] : state.older) move(trainable);
}

}  // namespace pipewright
