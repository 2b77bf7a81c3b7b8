#include "runtime/stage/recording_plan.h"

namespace pipewright {
namespace {

// The most places that the versions of a stage's weights have if dead ones leave theirs to new ones; 0: more
// than recordings are made for.
size_t fixed_places(const Plan& plan, const PipelineShape& shape, const std::vector<int64_t>& depths,
                    int64_t stage) {
  const WeightLag lag = weight_rule_facts(plan.weights).lag;
  if (lag == WeightLag::kNone) return 1;
  if (lag == WeightLag::kInterval) return 2;
  return depths[static_cast<size_t>(lag == WeightLag::kFirstStage ? shape.frozen_stages : stage)] == 1 ? 1
                                                                                                       : 0;
}

}  // namespace

RecordingPlan recording_plan(const Graph& graph, const Plan& plan, const PipelineShape& shape, int64_t stage,
                             const StageProgram& program, const TrainingRules& rules) {
  const StageTurns turns(shape, stage);
  RecordingPlan recordings;
  recordings.settings.device = rules.device;
  recordings.settings.seed = rules.seed;
  const auto depths = schedule_named(plan.schedule).depths(shape);
  recordings.settings.places = fixed_places(plan, shape, depths, stage);
  recordings.settings.one_in_flight = depths[static_cast<size_t>(stage)] == 1;
  recordings.settings.if_host_bound = rules.cuda_graphs == "auto";
  recordings.settings.split_backward = plan.splits_backward();
  recordings.settings.several_a_round = turns.most_of_one_replica(turns.round_length()) > 1;
  if (!rules.make_graphs) {
    recordings.obstacle = "the device is '" + rules.device.str() + "', which has none";
  } else if (weight_rule_facts(plan.weights).in_place && !recordings.settings.one_in_flight) {
    recordings.obstacle = "updates change the weights of stage " + std::to_string(stage) +
                          " under minibatches in flight (weights '" + plan.weights + "')";
  } else if (recordings.settings.places == 0) {
    recordings.obstacle = "stage " + std::to_string(stage) + " has several versions in flight (weights '" +
                          plan.weights + "'), which lie wherever there is room";
  } else if (turns.splits()) {
    recordings.obstacle = "stage " + std::to_string(stage) + " splits its minibatches";
  } else if (program.recomputes_a_part()) {
    recordings.obstacle = "stage " + std::to_string(stage) + " recomputes a part of its nodes";
  } else {
    recordings.obstacle = recording_obstacle(graph, program.segment().nodes());
  }
  return recordings;
}

}  // namespace pipewright
