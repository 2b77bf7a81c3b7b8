#include "optimizer/plan/optimizer.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/rows.h"
#include "graph/strategies.h"
#include "graph/units.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/tied.h"
#include "optimizer/cuts/states.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/infeasible.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/pool.h"
#include "optimizer/plan/pool_seeds.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/plan/stage_layers.h"
#include "optimizer/search/few_cuts.h"
#include "optimizer/search/inference.h"
#include "optimizer/search/search.h"
#include "optimizer/search/thin_stages.h"
#include "optimizer/search/widen.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

/// Bounds are lower by this part, for sums in another order.
constexpr double kBoundRounding = 1e-9;
/// An exact number of devices takes a table by cut and number.
constexpr int64_t kMostCounted = 256;

/// What a strategy asks of the search.
void ask(StrategyKind strategy, Question* q) {
  switch (strategy) {
    case StrategyKind::kBest:
    case StrategyKind::kManual:
      return;
    case StrategyKind::kDataParallel:
      q->single_stage = true;
      return;
    case StrategyKind::kStraight:
      q->most_replicas = 1;
      if (q->devices > 1) q->least_stages = 2;
      return;
    case StrategyKind::kHybrid:
      q->least_stages = 2;
      q->replicated = true;
      return;
    case StrategyKind::kModelParallel:
      // Stages run one after the other, so more of them only add traffic: the strategy is there because the
      // model does not fit one device, and its cuts are those that share the work (and with it the memory)
      // best among all devices.
      q->most_replicas = 1;
      q->all_devices = true;
      q->one_in_flight = true;
      return;
  }
  PW_CHECK(false, "strategy " << static_cast<int>(strategy));
}

bool recomputes(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const Stage& s) { return s.recompute; });
}

/// What the demands leave to search for.
std::optional<Answer> answer_to(const Question& q, const StageDemands& demands,
                                const std::vector<NodeSet>& pinned) {
  return demands.any() ? search_with_demands(q, demands, pinned) : search(q);
}

void check_demands(const PlanRequest& request, Question* question) {
  if (!request.demands.any()) return;
  if (question->single_stage) {
    throw InputError("--strategy dp: not together with --max-stages, --replicas or --pin",
                     "Data parallelism is one stage on all devices: ask for --gpus of them.");
  }
  if (request.use_all_devices) {
    throw InputError("--use-all-devices: not together with --max-stages, --replicas or --pin",
                     "Name the replicas of all stages instead: --replicas 0:3,1:1.");
  }
  question->all_devices = false;
}

Plan plan_of(const Answer& answer, const States& states, const Profile& profile) {
  Plan plan;
  std::vector<NodeSet> nodes_of_stages;
  plan.model = profile.model;
  plan.graph_digest = profile.graph_digest;
  const LayerWeights layers(profile);
  for (const FoundStage& found : answer.stages) {
    Stage stage;
    const NodeSet nodes = states.states[found.to].done - states.states[found.from].done;
    for (size_t v = nodes.find_first(); v != NodeSet::npos; v = nodes.find_next(v)) {
      stage.nodes.push_back(profile.nodes[v].name);
    }
    nodes_of_stages.push_back(nodes);
    stage.layers = layers.of(stage.nodes);
    stage.ranks = found.ranks;
    stage.shares = found.shares;
    stage.recompute = found.recompute;
    if (stage.ranks.empty()) {
      stage.ranks.resize(found.replicas);
      std::iota(stage.ranks.begin(), stage.ranks.end(), plan.world_size);
    }
    plan.world_size += found.replicas;
    plan.stages.push_back(std::move(stage));
  }
  plan.tied_parameters = tied_parameters(split_groups(states.ties, nodes_of_stages));
  return plan;
}

/// The least period, to a percent, with which there is a plan for answering; nothing if there is none.
std::optional<double> least_inference_period(const Question& question, double impossible) {
  double low = impossible;
  double high = 2 * low;
  while (!search_inference(question, high)) {
    if (high > kMostSeconds) return std::nullopt;
    low = high;
    high *= 2;
  }
  while (high > 1.01 * low) {
    const double middle = low + (high - low) / 2;
    (search_inference(question, middle) ? high : low) = middle;
  }
  return high;
}

/// Forward only. The depths are those that keep such a pipeline full; `predicted` has forwards alone.
Plan inference_plan(const Question& question, const PlanRequest& request, const Profile& profile) {
  const double period = request.inference_period_seconds;
  const std::optional<InferenceAnswer> found = search_inference(question, period);
  if (!found) {
    const std::optional<double> least = least_inference_period(question, period);
    throw InfeasibleError(
        "no plan on " + std::to_string(question.devices) + " devices takes a minibatch every " +
            format_seconds(period) + (question.memory_bytes > 0 ? " within the memory" : ""),
        least ? "--period " + format_seconds(*least) + " is possible; so are more devices, or faster links."
              : "Give more memory or more devices.");
  }
  Plan plan = plan_of(found->answer, *question.states, profile);
  plan.strategy = "manual";
  plan.profile_digest = document_digest(profile);
  std::vector<int64_t> replicas;
  for (const FoundStage& stage : found->answer.stages) replicas.push_back(stage.replicas);
  const std::vector<int64_t> depths = pipedream_in_flight(replicas);
  Prediction prediction;
  prediction.minibatch_seconds = found->answer.period_seconds;
  double work = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    plan.stages[s].in_flight = depths[s];
    const InferenceCost& cost = found->stages[s];
    StagePrediction stage;
    stage.compute_seconds = cost.forward_seconds;
    stage.receive_seconds = cost.receive_seconds;
    if (s > 0) prediction.stages[s - 1].send_seconds = cost.receive_seconds;
    const StageLoad load =
        load_between(*question.states, found->answer.stages[s].from, found->answer.stages[s].to);
    stage.memory.weights_bytes = load.parameter_bytes + load.buffer_bytes;
    stage.memory.messages_bytes = 2 * (load.in_bytes + load.out_bytes);
    prediction.stages.push_back(stage);
    work += cost.forward_seconds;
  }
  prediction.bottleneck = "latency " + format_seconds(found->latency_seconds) + " (" + format_seconds(work) +
                          " of it compute), forward only";
  const double forward = question.states->states.back().forward_seconds;
  prediction.lower_bound_seconds =
      std::min(prediction.minibatch_seconds, shared_out_seconds(forward, plan.stages, question.inputs));
  if (profile.minibatch_samples > 0 && prediction.minibatch_seconds > 0) {
    prediction.samples_per_second =
        static_cast<double>(profile.minibatch_samples) / prediction.minibatch_seconds;
  }
  plan.predicted = std::move(prediction);
  return plan;
}

/// What no plan that the question allows is faster than. The period of an exact search is itself that. Where
/// times add up it is the sum of all work, where nothing better is known the work shared out evenly.
double bound_seconds(const Question& q, const PlanRequest& request, const WideAnswer* wide,
                     const Answer& answer) {
  const State& whole = q.states->states.back();
  double pace = 0;  // of all devices, not those of this plan alone
  double fastest = 0;
  for (int64_t d = 0; d < q.devices; ++d) {
    const double own = q.inputs.paces.empty() ? 1 : q.inputs.paces[d];
    pace += own;
    fastest = std::max(fastest, own);
  }
  if (q.one_in_flight) return whole.least_seconds / fastest;
  const double shared = whole.least_seconds / pace * (1 - kBoundRounding);
  if (schedule_facts(request.schedule).several_stages) return shared;
  if (Pricer::takes(q, request) && !q.single_stage && !request.demands.any() && q.states->exact &&
      (q.inputs.placed() || q.memory_bytes > 0)) {
    return std::max(shared, least_period_anywhere(q));
  }
  if (q.inputs.placed()) {
    if (!q.states->exact) return shared;
    if (!drains(request)) return answer.bound_seconds;
    if (request.effort < 1) return shared;
    // The answer is but one of several candidates.
    const std::optional<Answer> any = search(q);
    return any ? any->bound_seconds : shared;
  }
  // On one level the search takes the exchange of update intervals for too long.
  if (q.inputs.minibatches_per_update > 0) return shared;
  return wide != nullptr ? wide->bound_seconds : answer.period_seconds * (1 - kBoundRounding);
}

/// Which plans bound_seconds() speaks of.
std::string family_of(const PlanRequest& request, const Question& q) {
  const bool model_parallel = q.one_in_flight;
  std::string text =
      (searched_strategy(request.strategy).kind == StrategyKind::kBest ? "" : request.strategy + " ") +
      "plan";
  if (!model_parallel) text += " of schedule " + request.schedule + " with weights " + request.weights;
  if (q.inputs.minibatches_per_update > 0)
    text += ", " + std::to_string(q.inputs.minibatches_per_update) + " microbatches";
  if (request.demands.any()) text += ", with the stages demanded";
  if (request.use_all_devices) text += ", on all devices";
  const bool unequal = !q.inputs.speeds.empty() || !q.inputs.memories.empty();
  if (unequal && !drains(request) && !q.single_stage) return text + ", of stages on consecutive devices,";
  if (!q.model->simulated) return text + ", by this objective's formula,";
  const bool replicas = q.most_replicas > 1 && !q.single_stage;
  return Pricer::takes(q, request) && replicas ? text + " whose replicas take turns one by one" : text;
}

}  // namespace

Plan make_plan(const Profile& profile, const Topology& topology, const PlanRequest& asked, PlanNotes* notes) {
  const StrategyKind strategy = searched_strategy(asked.strategy).kind;
  const PlanRequest request = with_run_rules(asked, topology.device_count());
  const CostModel& model = cost_model_named(request.objective);
  Question question;
  question.model = &model;
  question.inputs = cost_inputs(profile, topology, request.optimizer_slots, request.class_profiles);
  question.devices = topology.device_count();
  question.memory_bytes = memory_limit_bytes(topology);
  question.all_devices = request.use_all_devices;
  question.devices_in_order = request.devices_in_order;
  question.recompute = row_named(recompute_choices(), "recompute", request.recompute).choice;
  const Dataflow flow(profile, request.class_profiles, ties_of(request));
  States states = enumerate_states(flow, model, question.memory_bytes > 0);
  question.states = &states;
  ask(strategy, &question);
  set_run_rules(request, &question);
  // One stage, or stages of equal work, need no more cuts.
  const bool placed = question.inputs.placed();
  const bool widen = !states.exact && !question.single_stage && !question.one_in_flight && !placed;
  // One rank a stage cannot use more ranks than there are stages.
  if (question.most_replicas == 1 && !placed)
    question.devices = std::min(question.devices, longest_chain(states));
  if (question.all_devices && question.devices > kMostCounted) {
    throw InputError("use of all devices: " + std::to_string(question.devices) + " is not in 1.." +
                         std::to_string(kMostCounted),
                     "Without --use-all-devices any number can be planned for.");
  }

  if (request.inference_period_seconds > 0) {
    Plan plan = inference_plan(question, request, profile);
    plan.topology_digest = document_digest(topology);
    if (notes != nullptr) *notes = {states.size(), states.exact, plan.predicted->minibatch_seconds};
    return plan;
  }
  check_demands(request, &question);
  const std::vector<NodeSet> pinned = pinned_nodes(profile, request.demands);
  std::optional<WideAnswer> wide;
  if (widen) wide = search_widely(flow, question, states, question.memory_bytes > 0);
  if (wide && wide->answer) states = std::move(wide->states);
  const bool pooled = Pricer::takes(question, request) && !question.single_stage && !request.demands.any();
  std::optional<Answer> answer;
  std::vector<Answer> drained;
  if (drains(request)) {
    drained = candidates(question, request, pinned);
    if (!drained.empty()) answer = drained.front();
  } else {
    const bool slow =
        placed && states.size() > kNearCuts && (question.memory_bytes > 0 || request.effort < 1);
    if (pooled && slow && !question.all_devices)
      answer = near_answer_to(question);
    else
      answer = wide && !request.demands.any() ? wide->answer : answer_to(question, request.demands, pinned);
  }
  if (!answer && pooled && question.memory_bytes > 0 && !question.all_devices) {
    Question shallow = question;  // depths that keep the pipeline full may be what does not fit
    shallow.least_depths = true;
    shallow.inputs.levels.clear();  // memory does not depend on where a stage is
    answer = search(shallow);
  }
  const std::string ties = flow.copies ? "" : forbidden_cuts_text(profile);
  if (!answer && request.demands.any()) fail_demands(question, request, pinned, ties);
  for (Question fewer = question; !answer && question.one_in_flight && fewer.devices > 1;) {
    --fewer.devices;  // a costly cut may be what does not fit
    answer = search(fewer);
  }
  if (!answer) {
    if (question.one_in_flight) question.all_devices = false;
    question.least_depths = pooled && !question.all_devices;  // the least memory is that of the least depths
    fail_infeasible(question, request.strategy, profile.minibatch_samples, ties);
  }

  // With the depths given, or else those that suit it.
  const auto priced = [&](const Answer& found, const std::vector<int64_t>& depths = {}) {
    Plan plan = plan_of(found, states, profile);
    const std::vector<StageLoad> loads = loads_of_plan(plan, flow, model);
    if (depths.empty()) {
      if (!set_run_rules(request, loads, question.inputs, question.memory_bytes, &plan))
        return std::optional<Plan>();
    } else {
      set_schedule(request, &plan);
      for (size_t s = 0; s < depths.size(); ++s) plan.stages[s].in_flight = depths[s];
    }
    CostInputs inputs = question.inputs;
    set_run_rules(plan, &inputs);
    plan.predicted = predict(plan, loads, model, inputs, profile.minibatch_samples);
    return std::optional<Plan>(std::move(plan));
  };
  std::optional<Plan> best;
  std::vector<FoundStage> stages;  // its
  for (const Answer& candidate : drained) {
    std::optional<Plan> other = priced(candidate);
    if (!other) continue;
    const double gain = best ? best->predicted->minibatch_seconds / other->predicted->minibatch_seconds : 2;
    if (gain <= 1 + 1e-9) continue;
    best = std::move(other);
    stages = candidate.stages;
  }
  const double bound = bound_seconds(question, request, wide ? &*wide : nullptr, *answer);
  if (pooled) {
    const std::optional<PoolAnswer> fastest = best_as_simulated(question, request, {*answer}, bound);
    if (fastest) best = priced({fastest->candidate.stages}, fastest->depths);
    if (notes != nullptr) notes->capped = fastest && fastest->capped;
  }
  if (!drains(request) && !best) best = priced({stages = answer->stages});
  if (!best) {
    question.least_depths = pooled && !question.all_devices;
    fail_infeasible(question, request.strategy, profile.minibatch_samples, ties);
  }
  Plan plan = std::move(*best);
  // Unless it was asked for, no stage that computes less than its messages take, if that costs next to
  // nothing (the pool knows of this itself).
  const bool free_to_join = !pooled && strategy == StrategyKind::kBest && !request.demands.any() &&
                            !request.use_all_devices && !schedule_facts(request.schedule).several_stages &&
                            model.simulated;
  const double enough = kThinTolerance * plan.predicted->minibatch_seconds;
  while (free_to_join && has_thin_stage(stages, question)) {
    std::optional<Plan> joined;
    for (const std::vector<FoundStage>& way : with_thin_stage_joined(stages, question)) {
      std::optional<Plan> other = priced({way});
      if (!other || other->predicted->minibatch_seconds > enough) continue;
      if (joined && joined->predicted->minibatch_seconds <= other->predicted->minibatch_seconds) continue;
      joined = std::move(other);
      stages = way;
    }
    if (!joined) break;
    plan = std::move(*joined);
  }
  // Transfers can need more depth than the bound that the search keeps room for. Where memory then holds the
  // plan back, plans that keep more room are tried as well.
  const auto seconds = [](const Plan& p) { return p.predicted->minibatch_seconds; };
  const auto take_if_faster = [&](std::optional<Plan> other) {
    if (other && seconds(*other) < (1 - 1e-9) * seconds(plan)) plan = std::move(*other);
  };
  const bool held_back = question.memory_bytes > 0 && !drains(request) && !pooled &&
                         seconds(plan) > 1.01 * answer->period_seconds;
  for (const int64_t extra : {1, 2, 3, 4}) {
    if (!held_back || question.one_in_flight || question.single_stage) break;
    Question roomier = question;
    roomier.extra_in_flight = extra;
    const std::optional<Answer> found = answer_to(roomier, request.demands, pinned);
    if (!found) break;
    take_if_faster(priced(*found));
  }
  // The other way round, a stage may recompute for a depth that it turns out not to need.
  if (question.recompute == Recompute::kWhereNeeded && recomputes(plan) && !pooled) {
    Question keeping = question;
    keeping.recompute = Recompute::kNever;
    if (drains(request)) {
      for (const Answer& candidate : candidates(keeping, request, pinned)) take_if_faster(priced(candidate));
    } else if (const std::optional<Answer> found = answer_to(keeping, request.demands, pinned)) {
      take_if_faster(priced(*found));
    }
  }

  plan.strategy = request.strategy;
  plan.profile_digest = document_digest(profile);
  plan.topology_digest = document_digest(topology);
  plan.predicted->lower_bound_seconds = std::min(seconds(plan), bound);
  if (question.memory_bytes > 0) {
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      PW_CHECK_LE(plan.predicted->stages[s].memory.total_bytes(),
                  memory_limit_bytes(topology, plan.stages[s]));
    }
  }
  if (notes != nullptr) {
    notes->cuts = states.size();
    notes->exact = states.exact && answer->exact;
    notes->period_seconds = answer->period_seconds;
    notes->family = family_of(request, question);
  }
  return plan;
}

}  // namespace pipewright
