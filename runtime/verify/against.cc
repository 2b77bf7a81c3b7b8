#include "runtime/verify/against.h"

#include <algorithm>
#include <optional>

#include "graph/error.h"
#include "runtime/checkpoint/checkpoint.h"

namespace pipewright {
namespace {

// What is compared of a checkpoint, each kind by itself: statistics move by other amounts than weights.
struct Places {
  std::vector<StageTensor> parameters, buffers;
};

Places compared_places(const Job& job, const OtherTraining::Weights& weights) {
  Places compared;
  const Plan& plan = job.plan_of(job.generation_at(weights.minibatches - 1));
  for (StageTensor place : places_before(job, weights.minibatches, /*drained=*/true)) {
    if (place.trainable) compared.parameters.push_back(place);
    const bool alone = plan.stages[static_cast<size_t>(place.stage)].ranks.size() == 1;
    const auto found = weights.tensors.find(place.name);
    if (!place.buffer || !alone || found == weights.tensors.end()) continue;
    if (!found->second.is_floating_point()) continue;
    place.trainable = true;  // as compare_relatively() asks
    compared.buffers.push_back(place);
  }
  return compared;
}

RelativeComparison compared(const TrainedModel& got, const TrainedModel& expected,
                            const std::map<std::string, at::Tensor>& start, const Places& places) {
  RelativeComparison all = compare_relatively(got, expected, start, places.parameters);
  const RelativeComparison buffers = compare_relatively(got, expected, start, places.buffers);
  all.parameters.insert(all.parameters.end(), buffers.parameters.begin(), buffers.parameters.end());
  return all;
}

std::optional<Checkpoint> checkpoint_of(const std::filesystem::path& run_folder, int64_t next) {
  for (const auto& folder : list_checkpoints(run_folder)) {
    Checkpoint checkpoint = open_checkpoint(folder);
    if (checkpoint.manifest.next_minibatch == next) return checkpoint;
  }
  return {};
}

// Both began with the same weights, bit for bit, or nothing else can be compared.
void demand_start(const std::map<std::string, at::Tensor>& start, const OtherTraining::Weights& weights,
                  const Model& model) {
  for (const Parameter& parameter : model.graph.parameters) {
    const auto there = weights.tensors.find(parameter.name);
    const auto here = start.find(parameter.name);
    if (there == weights.tensors.end() || here == start.end() || here->second.equal(there->second)) continue;
    throw NumericalError(
        "verify: " + weights.file + " begins with another " + in_quotes(parameter.name) + " than the run",
        "Begin both with the same weights: --initial-weights, or the exported program's.");
  }
}

}  // namespace

bool AgainstOther::equal() const {
  return losses.equal &&
         std::all_of(weights.begin(), weights.end(), [](const Weights& each) { return each.tensors.equal; });
}

bool AgainstOther::holds() const {
  return !losses.first && std::all_of(weights.begin(), weights.end(),
                                      [](const Weights& each) { return each.tensors.holds(); });
}

bool AgainstOther::says_something() const {
  if (weights.empty() && losses.left_out == 0) return losses.compared > 0;
  if (equal()) return true;
  if (weights.empty()) return losses.compared > 0;
  return std::any_of(weights.begin(), weights.end(),
                     [](const Weights& each) { return each.tensors.compared() > 0; });
}

AgainstOther compare_with_other(const Job& job, const Retraining& retraining,
                                const std::filesystem::path& run_folder, const OtherTraining& other,
                                Span minibatches, const TrainedModel& written, const TrainedModel& serial,
                                double tolerance) {
  AgainstOther against;
  against.from = other.from;
  const auto start = retraining.start();
  const TrainedModel shifted =
      retraining.train(retraining.planned_until(minibatches.end()), "rounding", /*shifted=*/true);
  against.losses = compare_losses(written.losses, other.losses, serial.losses, shifted.losses,
                                  minibatches.first, loss_tolerance(job.run.precision));
  for (const OtherTraining::Weights& weights : other.weights) {
    if (weights.minibatches == minibatches.first) {
      demand_start(start, weights, job.model);
      continue;
    }
    const Places places = compared_places(job, weights);
    const bool last = weights.minibatches == minibatches.end();
    const auto after = [&](const TrainedModel& whole, bool shift) {
      TrainedModel model =
          last ? whole : retraining.train(retraining.planned_until(weights.minibatches), "rounding", shift);
      model.losses = {};
      return model;
    };
    const TrainedModel unshifted = after(serial, false);
    const auto checkpoint = checkpoint_of(run_folder, weights.minibatches);
    TrainedModel here =
        checkpoint ? written_model(job, run_folder, *checkpoint, minibatches.first) : unshifted;
    here.losses = {};
    const TrainedModel there = {{}, weights.tensors};
    UpToRounding tensors;
    tensors.found = compared(here, there, start, places);
    tensors.rounding = compared(after(shifted, true), unshifted, start, places);
    tensors.tolerance = tolerance;
    tensors.equal = compare_exactly(here, there, places.parameters).equal() &&
                    compare_exactly(here, there, places.buffers).equal();
    against.weights.push_back({weights.file, weights.minibatches, std::move(tensors)});
  }
  return against;
}

}  // namespace pipewright
