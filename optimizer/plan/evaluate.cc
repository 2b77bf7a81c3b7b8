#include "optimizer/plan/evaluate.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>

#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/recursion.h"
#include "optimizer/cost/tied.h"
#include "optimizer/plan/optimizer.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

bool one_at_a_time(const Plan& plan) {
  return schedule_facts(plan.schedule).kind == ScheduleKind::kModelParallel;
}

std::vector<int> stage_of_nodes(const Plan& plan, const Dataflow& flow) {
  std::map<std::string, int> number;
  for (int v = 0; v < flow.size(); ++v) number[flow.profile.nodes[v].name] = v;
  std::vector<int> stage_of(flow.size(), -1);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    int last = -1;
    for (const std::string& name : plan.stages[s].nodes) {
      const auto found = number.find(name);
      if (found == number.end()) {
        throw PlanError("plan: stage " + std::to_string(s) + " holds node '" + name +
                            "', which profile of '" + flow.profile.model + "' does not have",
                        "The plan was made for another model or another version of it: plan again.");
      }
      int& stage = stage_of[found->second];
      if (stage >= 0) {
        throw PlanError("plan: node '" + name + "' is in stages " + std::to_string(stage) + " and " +
                            std::to_string(s) + "; each node belongs in one",
                        "Remove it from one of them.");
      }
      stage = static_cast<int>(s);
      if (found->second < last) {
        throw PlanError("plan: stage " + std::to_string(s) + " has node '" + name + "' after '" +
                            flow.profile.nodes[last].name + "', against the order of the profile",
                        "List the nodes of a stage in the profile's order.");
      }
      last = found->second;
    }
  }
  for (int v = 0; v < flow.size(); ++v) {
    if (stage_of[v] >= 0) continue;
    throw PlanError("plan: no stage holds node '" + flow.profile.nodes[v].name + "' of the profile of '" +
                        flow.profile.model + "'",
                    "The plan was made for another model or another version of it: plan again.");
  }
  return stage_of;
}

/// By parameter: the stages that read it, each with its first node that does.
using Readers = std::map<std::string, std::map<int64_t, std::string>>;

/// What several stages read is named as tied, with just these stages.
void check_tied(const Plan& plan, const Readers& readers) {
  std::map<std::string, std::set<int64_t>> said;
  for (const TiedParameter& tied : plan.tied_parameters)
    said[tied.name] = std::set<int64_t>(tied.stages.begin(), tied.stages.end());
  for (const auto& [name, by_stage] : readers) {
    if (by_stage.size() < 2) continue;
    std::set<int64_t> stages;
    for (const auto& [stage, node] : by_stage) stages.insert(stage);
    if (said[name] == stages) continue;
    throw PlanError("plan: parameter '" + name + "', read by nodes '" + by_stage.begin()->second + "' and '" +
                        by_stage.rbegin()->second + "', is in stages " +
                        std::to_string(by_stage.begin()->first) + " and " +
                        std::to_string(by_stage.rbegin()->first) + ", and `tied_parameters` does not say so",
                    "Put all nodes that read it into one stage, or, with weights 'flush' or '2bw', name it "
                    "there with its stages.");
  }
}

void check_together(const Dataflow& flow, const std::vector<int>& stage_of) {
  std::map<std::string, int> stages;
  for (int v = 0; v < flow.size(); ++v) stages.emplace(flow.profile.nodes[v].name, stage_of[v]);
  for (const auto& set : flow.profile.together) {
    for (const std::string& name : set) {
      if (stages.at(name) == stages.at(set[0])) continue;
      throw PlanError(
          "plan: nodes '" + set[0] + "' of stage " + std::to_string(stages.at(set[0])) + " and '" + name +
              "' of stage " + std::to_string(stages.at(name)) +
              " share memory that is written in place: a cut between them would change the result",
          "Put all nodes of this set of the profile's `together` into one stage: " + join(set, ", ") + ".");
    }
  }
}

}  // namespace

std::vector<StageLoad> loads_of_plan(const Plan& plan, const Dataflow& flow, const CostModel& model) {
  const std::vector<int> stage_of = stage_of_nodes(plan, flow);
  const int stages = static_cast<int>(plan.stages.size());
  std::vector<StageLoad> loads(stages);
  for (int s = 0; s < stages; ++s) {
    loads[s].first = s == 0;
    loads[s].last = s + 1 == stages;
    loads[s].recompute = plan.stages[s].recompute;
  }

  Readers readers;
  for (int v = 0; v < flow.size(); ++v) {
    const ProfiledNode& node = flow.profile.nodes[v];
    StageLoad& load = loads[stage_of[v]];
    load.forward_seconds += node.forward_seconds;
    load.backward_seconds += node.backward_seconds();
    load.backward_weight_seconds += node.backward_weight_seconds;
    load.least_seconds += flow.least_seconds[v];
    load.classes.resize(flow.class_seconds.size());
    for (size_t c = 0; c < load.classes.size(); ++c) {
      load.classes[c].forward_seconds += flow.class_seconds[c][v].forward_seconds;
      load.classes[c].backward_seconds += flow.class_seconds[c][v].backward_seconds;
    }
    load.buffer_bytes += node.buffer_bytes;
    load.saved_bytes += node.saved_bytes;
    for (const std::string& parameter : node.parameters) readers[parameter].emplace(stage_of[v], node.name);
    load.parameter_bytes += flow.own_parameter_bytes[v];
    load.trainable_bytes += flow.own_trainable_bytes[v];
  }
  // A tied parameter counts once in each stage that has it.
  std::vector<NodeSet> nodes(plan.stages.size(), NodeSet(static_cast<size_t>(flow.size())));
  for (int v = 0; v < flow.size(); ++v) nodes[static_cast<size_t>(stage_of[v])].set(v);
  for (const TiedGroup& tie : flow.ties) {
    for (int s = 0; s < stages; ++s) {
      const bool reads =
          std::any_of(tie.readers.begin(), tie.readers.end(), [&](int v) { return stage_of[v] == s; });
      if (!reads) continue;
      loads[s].parameter_bytes += tie.parameter_bytes;
      loads[s].trainable_bytes += tie.trainable_bytes;
    }
  }
  set_tied(split_groups(flow.ties, nodes), plan.stages, &loads);

  // A value crosses every boundary from its maker's stage to that of its last reader.
  for (const DataflowValue& value : flow.values) {
    const int from = stage_of[value.producer];
    int to = from;
    for (const int reader : value.readers) {
      if (stage_of[reader] < from) {
        throw PlanError("plan: node '" + flow.profile.nodes[reader].name + "' of stage " +
                            std::to_string(stage_of[reader]) + " reads what node '" +
                            flow.profile.nodes[value.producer].name + "' of the later stage " +
                            std::to_string(from) + " makes; values flow forward only",
                        "Move one of the two nodes, so that values flow to later stages only.");
      }
      to = std::max(to, stage_of[reader]);
    }
    for (int s = from; s < to; ++s) {
      loads[s].out_bytes += value.bytes;
      loads[s + 1].in_bytes += value.bytes;
    }
  }

  std::vector<int64_t> saved_later(stages, 0);
  for (int v = flow.size(); v-- > 0;) {
    StageLoad& load = loads[stage_of[v]];
    int64_t& later = saved_later[stage_of[v]];
    load.workspace_bytes = std::max(load.workspace_bytes, flow.transient_bytes[v] - later);
    later += flow.saved_bytes[v];
  }

  check_tied(plan, readers);
  check_together(flow, stage_of);
  NodeSet done(flow.size());
  for (int s = 0; s + 1 < stages; ++s) {
    for (int v = 0; v < flow.size(); ++v) {
      if (stage_of[v] == s) done.set(v);
    }
    const int64_t charged = model.cut_bytes(flow, done);
    loads[s].charged_out_bytes = charged;
    loads[s].held_bytes = unsaved_live_bytes(flow, done);
    loads[s + 1].charged_in_bytes = charged;
  }
  return loads;
}

void set_run_rules(const Plan& plan, CostInputs* inputs) {
  inputs->weights = weight_rule_named(plan.weights);
  inputs->minibatches_per_update = facts_of(inputs->weights).one_update_for_all ? plan.microbatches : 0;
  inputs->pipeline_depth = plan.stages.empty() ? 0 : plan.stages[0].in_flight;
  inputs->split_backward = schedule_facts(plan.schedule).splits_backward;
}

CostInputs inputs_of_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                          const PlanRequest& request) {
  CostInputs inputs = cost_inputs(profile, topology, request.optimizer_slots, request.class_profiles);
  set_run_rules(plan, &inputs);
  return inputs;
}

std::vector<StagePeriod> periods_of(const Plan& plan, const std::vector<StageLoad>& loads,
                                    const CostModel& model, const CostInputs& inputs) {
  if (inputs.placed()) return price_placed(loads, plan.stages, model, inputs).stages;
  std::vector<StagePeriod> periods;
  for (size_t s = 0; s < loads.size(); ++s) {
    periods.push_back(model.period(loads[s], static_cast<int64_t>(plan.stages[s].ranks.size()), inputs));
  }
  return periods;
}

std::vector<StageTimes> times_of(const Plan& plan, const std::vector<StageLoad>& loads,
                                 const CostInputs& inputs) {
  if (inputs.placed()) return placed_times(loads, plan.stages, inputs);
  std::vector<StageTimes> times;
  for (size_t s = 0; s < loads.size(); ++s) {
    times.push_back(stage_times(loads[s], static_cast<int64_t>(plan.stages[s].ranks.size()), inputs));
  }
  return times;
}

double formula_seconds(const Plan& plan, const std::vector<StageLoad>& loads, const CostModel& model,
                       const CostInputs& inputs) {
  if (one_at_a_time(plan) && inputs.placed()) {
    double seconds = 0;
    for (const StageTimes& times : placed_times(loads, plan.stages, inputs)) {
      seconds += times.forward_seconds + times.backward_seconds + times.send_activation_seconds +
                 times.send_gradient_seconds;
    }
    return seconds;
  }
  if (one_at_a_time(plan)) return one_at_a_time_seconds(loads, inputs);
  if (inputs.placed() && model.levels == LevelRule::kRecursion)
    return recursion_seconds(loads, plan.stages, inputs);
  const std::vector<StagePeriod> periods = periods_of(plan, loads, model, inputs);
  std::map<int64_t, double> busy;  // by first rank: a rank may have several stages
  double slowest = 0;
  for (size_t s = 0; s < loads.size(); ++s) {
    double& seconds = busy[plan.stages[s].ranks[0]];
    seconds += periods[s].total_seconds();
    slowest = std::max(slowest, seconds);
  }
  if (inputs.placed())
    slowest = std::max(slowest, price_placed(loads, plan.stages, model, inputs).link_seconds);
  return slowest;
}

bool worth_simulating(const PipelineShape& shape) {
  // Choosing depths simulates a few times for each stage.
  constexpr int64_t kFewRanks = 256;
  constexpr int64_t kMostActions = 1000000;
  constexpr int64_t kLongestRound = 4096;
  const int64_t round = pipeline_period(shape, kLongestRound, false).value_or(kLongestRound);
  int64_t depth = 1;
  for (int64_t s = 0; s < shape.stages(); ++s)
    depth = std::max(depth, shape.replicas[s] * shape.in_flight[s]);
  const int64_t minibatches =
      facts_of(shape.weights).drains() ? shape.microbatches : std::max(4 * depth + 16, 4 * round);
  return shape.ranks() <= kFewRanks || minibatches * shape.stages() * shape.stages() <= kMostActions;
}

SimulationOptions links_in_common(const Plan& plan, const std::vector<StageLoad>& loads,
                                  const CostInputs& inputs) {
  SimulationOptions how;
  if (inputs.levels.size() < 2 && (inputs.levels.empty() || !inputs.levels[0].shared)) return how;
  how.network = inputs.levels;
  for (const StageLoad& load : loads)
    how.messages.push_back({load.out_bytes, load.in_bytes, load.trainable_bytes});
  for (const Placement& at : placements(shape_of(plan)))
    how.devices.push_back(plan.stages[static_cast<size_t>(at.stage)].ranks[static_cast<size_t>(at.replica)]);
  return how;
}

double simulated_seconds(const Plan& plan, const std::vector<StageTimes>& times,
                         const SimulationOptions& how) {
  const PipelineShape shape = shape_of(plan);
  const ScheduleCheck check = check_schedule(plan.schedule, shape, rehearsal_span(shape));
  if (!check.completes || !check.problem.empty())
    throw PlanError("plan: schedule '" + plan.schedule + "' does not finish: " + check.problem);
  return settled_minibatch_seconds(plan.schedule, shape, times, how);
}

Prediction predict(const Plan& plan, const std::vector<StageLoad>& loads, const CostModel& model,
                   const CostInputs& inputs, int64_t minibatch_samples) {
  Prediction prediction;
  double work = 0;  // of one minibatch in all stages, one rank at a time
  double slowest = -1;
  const std::vector<StagePeriod> periods = periods_of(plan, loads, model, inputs);
  const std::vector<StageTimes> times = times_of(plan, loads, inputs);
  for (size_t s = 0; s < loads.size(); ++s) {
    const auto replicas = static_cast<int64_t>(plan.stages[s].ranks.size());
    const StagePeriod& period = periods[s];
    prediction.stages.push_back(
        stage_prediction(loads[s], replicas, plan.stages[s].in_flight, times[s], inputs));
    work += loads[s].least_seconds;
    if (period.total_seconds() <= slowest) continue;
    slowest = period.total_seconds();
    prediction.bottleneck = "stage " + std::to_string(s) + ": " + period.binding();
  }

  const double formula = formula_seconds(plan, loads, model, inputs);
  const bool flushes = facts_of(inputs.weights).drains();
  prediction.minibatch_seconds = formula;
  if (inputs.placed()) {
    const PlacedPrice price = price_placed(loads, plan.stages, model, inputs);
    if (model.levels == LevelRule::kRecursion) {
      prediction.bottleneck = "PipeDream's recursion";
    } else if (price.link_seconds > slowest) {
      prediction.bottleneck = price.busiest_link;
    }
  }
  if (one_at_a_time(plan)) {
    prediction.bottleneck =
        std::string("one minibatch at a time: ") + (2 * work >= formula ? "compute" : "transfer");
  }
  // Fill and drain are known to the simulation alone; it takes the replicas of a stage for equally fast, at
  // their pace together.
  if (model.simulated && worth_simulating(shape_of(plan)) && (inputs.speeds.empty() || flushes)) {
    Plan even = plan;
    if (!inputs.speeds.empty()) {
      for (Stage& stage : even.stages) stage.shares.clear();
    }
    const double steady = simulated_seconds(even, times, links_in_common(even, loads, inputs));
    // With links of their own the formula also knows that both directions of a boundary share one, and the
    // simulation knows waiting. On a network the simulation knows both, and which replicas talk to which,
    // where the formula takes traffic for evenly spread. An update interval's exchange is too long in it.
    const bool formula_knows_more = inputs.placed() ? !inputs.speeds.empty() : !flushes;
    prediction.minibatch_seconds = formula_knows_more ? std::max(formula, steady) : steady;
    if (prediction.minibatch_seconds > 1.01 * formula) {
      char waiting[64];
      std::snprintf(waiting, sizeof waiting, "; %.3g %% more for %s",
                    100 * (prediction.minibatch_seconds / formula - 1),
                    flushes ? "fill and drain" : "waiting");
      prediction.bottleneck += " (" + format_seconds(formula) + waiting + ")";
    }
  }
  if (!one_at_a_time(plan)) work = shared_out_seconds(work, plan.stages, inputs);
  prediction.lower_bound_seconds = std::min(work, prediction.minibatch_seconds);
  if (minibatch_samples > 0 && prediction.minibatch_seconds > 0) {
    prediction.samples_per_second = static_cast<double>(minibatch_samples) / prediction.minibatch_seconds;
  }
  return prediction;
}

Prediction evaluate_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                         const PlanRequest& request) {
  const CostModel& model = cost_model_named(request.objective);
  const CostInputs inputs = inputs_of_plan(plan, profile, topology, request);
  if (plan.world_size > topology.device_count()) {
    throw InfeasibleError("plan: needs " + std::to_string(plan.world_size) + " devices; the topology has " +
                          std::to_string(topology.device_count()));
  }
  const Dataflow flow(profile, request.class_profiles);
  return predict(plan, loads_of_plan(plan, flow, model), model, inputs, profile.minibatch_samples);
}

}  // namespace pipewright
