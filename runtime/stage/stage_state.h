// What a stage of a plan is besides its nodes, and where it comes from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "models/definition/model.h"
#include "runtime/update/update_rule.h"

namespace pipewright {

class StageProgram;

/// What minibatches from N on depend on of a stage, on one replica. On the host, wherever the stage is.
struct StageState {
  int64_t updates = 0;              ///< the number of the latest version
  std::vector<at::Tensor> weights;  ///< by StageProgram::parameters()
  std::vector<at::Tensor> buffers;  ///< by StageProgram::buffers()
  UpdateState optimizer;            ///< by StageProgram::trainable()
  /// Versions before the latest that minibatches from N on read, by number: their trainable weights, by
  /// StageProgram::trainable(). None where the pipeline is empty before N.
  std::map<int64_t, std::vector<at::Tensor>> older;
};

/// What the initialisers of the stage's parameters and buffers say, on `device`.
StageState first_state(const Model& model, const StageProgram& program, uint64_t seed, at::Device device);
/// Its tensors, those of the optimizer and the older versions included; they lose their gradients.
void move_to(at::Device device, StageState& state);

/// Where a rank's stages get their state from when a plan comes into force; runtime/generation/state_source.h
/// has the rows.
class StateSource {
 public:
  virtual ~StateSource() = default;
  /// Of one stage, for it alone to change; nothing where the model's initialisers say it. Called once for
  /// each stage of the rank.
  virtual std::optional<StageState> state_of(int64_t stage, int64_t replica, const StageProgram& program) = 0;
};

}  // namespace pipewright
