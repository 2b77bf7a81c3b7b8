#include "runtime/generation/state_source.h"

#include "runtime/checkpoint/checkpoint_state.h"
#include "runtime/checkpoint/initial_weights.h"

namespace pipewright {
namespace {

class FirstValues : public StateSource {
 public:
  std::optional<StageState> state_of(int64_t, int64_t, const StageProgram&) override { return std::nullopt; }
};

class WeightsFile : public StateSource {
 public:
  WeightsFile(const Run& run, const Model& model)
      : model_(model), seed_(static_cast<uint64_t>(run.seed)), weights_(run.initial_weights, model) {}
  std::optional<StageState> state_of(int64_t, int64_t, const StageProgram& program) override {
    return initial_state_from(weights_.files, model_, program, seed_);
  }

 private:
  const Model& model_;
  const uint64_t seed_;
  const InitialWeights weights_;
};

class FromCheckpoint : public StateSource {
 public:
  FromCheckpoint(const Checkpoint& checkpoint, const OptimizerSettings& optimizer, bool in_flight)
      : checkpoint_(checkpoint), optimizer_(optimizer), in_flight_(in_flight) {}
  std::optional<StageState> state_of(int64_t stage, int64_t replica, const StageProgram& program) override {
    StageState state = load_stage_state(checkpoint_, program, optimizer_);
    if (in_flight_) add_in_flight_state(checkpoint_, stage, replica, program, state);
    return state;
  }

 private:
  const Checkpoint& checkpoint_;
  const OptimizerSettings& optimizer_;
  const bool in_flight_;
};

}  // namespace

std::unique_ptr<StateSource> start_of(const Run& run, const Model& model,
                                      const std::optional<Checkpoint>& resume, bool in_flight) {
  if (resume) return std::make_unique<FromCheckpoint>(*resume, run.optimizer, in_flight);
  if (!run.initial_weights.empty()) return std::make_unique<WeightsFile>(run, model);
  return std::make_unique<FirstValues>();
}

}  // namespace pipewright
