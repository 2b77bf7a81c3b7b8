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
  explicit WeightsFile(const Job& job) : job_(job), weights_(job.run.initial_weights) {}
  std::optional<StageState> state_of(int64_t, int64_t, const StageProgram& program) override {
    return initial_state_from(weights_.files, job_.model, program, static_cast<uint64_t>(job_.run.seed));
  }

 private:
  const Job& job_;
  const InitialWeights weights_;
};

class FromCheckpoint : public StateSource {
 public:
  FromCheckpoint(const Job& job, bool in_flight) : job_(job), in_flight_(in_flight) {}
  std::optional<StageState> state_of(int64_t stage, int64_t replica, const StageProgram& program) override {
    StageState state = load_stage_state(*job_.resume, program, job_.run.optimizer);
    if (in_flight_) add_in_flight_state(*job_.resume, stage, replica, program, state);
    return state;
  }

 private:
  const Job& job_;
  const bool in_flight_;
};

}  // namespace

std::unique_ptr<StateSource> start_of(const Job& job, bool in_flight) {
  if (job.resume) return std::make_unique<FromCheckpoint>(job, in_flight);
  if (!job.run.initial_weights.empty()) return std::make_unique<WeightsFile>(job);
  return std::make_unique<FirstValues>();
}

}  // namespace pipewright
