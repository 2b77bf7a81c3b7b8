#include "runtime/verify/rounding.h"

#include <ATen/ops/arange.h>

#include <limits>

#include "models/initialise.h"

namespace pipewright {

StageState initial_state(const Model& model, const StageProgram& stage, uint64_t seed) {
  StageState state;
  for (const std::string& name : stage.parameters())
    state.weights.push_back(initial_parameter(model, name, seed));
  for (const std::string& name : stage.buffers()) state.buffers.push_back(initial_buffer(model, name));
  return state;
}

void shift_by_rounding(const StageProgram& stage, StageState& state) {
  for (const size_t i : stage.trainable()) {
    const at::Tensor flat = state.weights[i].flatten();
    const at::Tensor up = at::arange(flat.numel()).remainder(2).to(flat.scalar_type()).mul(2).sub(1);
    state.weights[i] =
        flat.nextafter(up.mul(std::numeric_limits<double>::infinity())).view(state.weights[i].sizes());
  }
}

}  // namespace pipewright
