#include "optimizer/plan/optimizer.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/rows.h"
#include "graph/strategies.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/cost/recompute.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/tied.h"
#include "optimizer/cuts/states.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/found_plan.h"
#include "optimizer/plan/infeasible.h"
#include "optimizer/plan/inference_plan.h"
#include "optimizer/plan/known_plans.h"
#include "optimizer/plan/lower_bound.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/plan/seeds.h"
#include "optimizer/plan/solve.h"
#include "optimizer/search/constraints.h"
#include "optimizer/search/search.h"
#include "optimizer/search/widen.h"

namespace pipewright {
namespace {

/// An exact number of devices takes a table by cut and number.
constexpr int64_t kMostCounted = 256;
/// A plan is faster than another by more than this part, which sums in another order make.
constexpr double kRounding = 1e-9;
constexpr double kNever = std::numeric_limits<double>::infinity();

double seconds(const Plan& plan) { return plan.predicted->minibatch_seconds; }

/// What a strategy asks of the search.
void ask(StrategyKind strategy, Problem* q) {
  switch (strategy) {
    case StrategyKind::kBest:
    case StrategyKind::kInference:
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

/// No rank keeps more than its device holds, for all its stages.
bool fits(const Plan& plan, const Topology& topology) {
  return memory_deficits(plan, *plan.predicted, *plan.predicted, topology).empty();
}

void check_constraints(const PlanRequest& request, Problem* problem) {
  if (!request.constraints.any()) return;
  if (problem->single_stage) {
    throw InputError("--strategy dp: not together with --max-stages, --replicas or --pin",
                     "Data parallelism is one stage on all devices: ask for --gpus of them.");
  }
  if (request.use_all_devices) {
    throw InputError("--use-all-devices: not together with --max-stages, --replicas or --pin",
                     "Name the replicas of all stages instead: --replicas 0:3,1:1.");
  }
  problem->all_devices = false;
}

}  // namespace

CostInputs requested_cost_inputs(const Profile& profile, const Topology& topology,
                                 const PlanRequest& request) {
  CostInputs inputs = cost_inputs(profile, topology, request.optimizer_slots, request.class_profiles);
  if (request.ignore_crowd) inputs.crowd.reset();
  inputs.slow_links = request.slow_links;
  if (!inputs.slow_links.empty() && inputs.levels.empty()) inputs.levels = inputs.exchange_levels;
  inputs.data_workers = request.data_workers;
  return inputs;
}

Problem requested_problem(const Profile& profile, const Topology& topology, const PlanRequest& request) {
  Problem problem;
  problem.inputs = requested_cost_inputs(profile, topology, request);
  problem.devices = topology.device_count();
  problem.memory_bytes = memory_limit_bytes(topology);
  problem.all_devices = request.use_all_devices;
  problem.recompute = row_named(recompute_choices(), "recompute", request.recompute).choice;
  return problem;
}

namespace {

/// One problem on its way to its plan: what the searches are asked, what they find, and the plan that
/// this becomes.
class Planning {
 public:
  Planning(const Profile& profile, const Topology& topology, const PlanRequest& asked);
  Planning(const Planning&) = delete;  // the problem points to the states
  Planning& operator=(const Planning&) = delete;

  Plan plan_for_inference();
  Plan plan_for_training();
  PlanNotes notes() const { return notes_; }

 private:
  Plan plan_of_search();
  Plan plan_by_solving();
  std::vector<Solution> known_solutions();
  bool drains() const { return pipewright::drains(request_); }
  /// What the constraints leave to search for.
  std::optional<Solution> solution_to(const Problem& problem) const;
  void widen();
  std::optional<Solution> first_solution();
  [[noreturn]] void fail();

  Pricing pricing() const {
    return {&flow_, problem_.inputs, rules_of(request_), problem_.memory_bytes, profile_.minibatch_samples};
  }
  std::optional<Plan> priced(const Solution& found, const std::vector<int64_t>& depths = {}) const;

  const Profile& profile_;
  const Topology& topology_;
  const PlanRequest request_;
  const StrategyKind strategy_;
  Problem problem_;
  const Dataflow flow_;
  States states_;
  std::string ties_;  // which cuts tied parameters forbid

  std::vector<NodeSet> pinned_;
  std::optional<StagePlaces> places_;  // where the constraints put stages, for solve()
  std::optional<WideSolution> wide_;   // where there are too many cuts to search them all
  bool solved_ = false;                // by solve()
  PlanNotes notes_;
};

Planning::Planning(const Profile& profile, const Topology& topology, const PlanRequest& asked)
    : profile_(profile),
      topology_(topology),
      request_(with_run_rules(asked, topology.device_count())),
      strategy_(searched_strategy(asked.strategy).kind),
      problem_(requested_problem(profile, topology, request_)),
      flow_(profile, request_.class_profiles, ties_of(request_)),
      states_(enumerate_states(flow_, problem_.memory_bytes > 0)) {
  problem_.states = &states_;
  ask(strategy_, &problem_);
  search_by_rules(request_, &problem_);
  // One rank a stage cannot use more ranks than there are stages.
  if (problem_.most_replicas == 1 && !problem_.inputs.placed())
    problem_.devices = std::min(problem_.devices, longest_chain(states_));
  if (problem_.all_devices && problem_.devices > kMostCounted) {
    throw InputError("use of all devices: " + std::to_string(problem_.devices) + " is not in 1.." +
                         std::to_string(kMostCounted),
                     "Without --use-all-devices any number can be planned for.");
  }
}

Plan Planning::plan_for_inference() {
  Plan plan = inference_plan(problem_, request_.inference_period_seconds, flow_);
  plan.topology_digest = document_digest(topology_);
  notes_ = {states_.size(), states_.exact, seconds(plan)};
  return plan;
}

Plan Planning::plan_for_training() {
  check_constraints(request_, &problem_);
  if (problem_.single_stage && problem_.most_replicas < problem_.devices)
    throw InfeasibleError("strategy 'dp': an update of " + std::to_string(problem_.devices) +
                              " minibatches, one of each replica, is more than " +
                              std::to_string(problem_.most_replicas),
                          "");
  pinned_ = pinned_nodes(profile_, request_.constraints);
  ties_ = flow_.copies ? "" : forbidden_cuts_text(profile_);
  solved_ = runs_overlapping(problem_, request_) && !problem_.single_stage;
  Plan plan = solved_ ? plan_by_solving() : plan_of_search();
  plan.strategy = request_.strategy;
  plan.profile_digest = measured_digest(profile_);
  plan.topology_digest = document_digest(topology_);
  PW_CHECK(fits(plan, topology_), "a plan that does not fit: " << plan.shape_text());
  notes_.cuts = states_.size();
  notes_.family = family_of(request_, problem_);
  return plan;
}

/// Where solve() begins, beside what it begins with itself: a caller's plans, or the best by the formula
/// where that is exact.
std::vector<Solution> Planning::known_solutions() {
  std::vector<Solution> known;
  if (begins_with_known(request_)) known = solutions_of(*request_.known, problem_, profile_);
  if (!known.empty() || problem_.inputs.placed() || drains()) return known;
  if (std::optional<Solution> solution = first_solution()) known.push_back(std::move(*solution));
  return known;
}

Plan Planning::plan_by_solving() {
  widen();
  if (request_.constraints.any()) {
    places_.emplace(states_, request_.constraints, pinned_, problem_.least_stages);
    problem_.places = &*places_;
  }
  const bool unequal = problem_.inputs.devices_differ();
  const std::vector<Solution> known = known_solutions();
  const Solution first = known.empty() ? Solution() : known.front();
  const double bound = unequal ? work_bound_seconds(problem_)
                               : bound_seconds(problem_, request_, wide_ ? &*wide_ : nullptr, first);
  if (bound >= request_.most_seconds) fail();
  const SolvedChains solved = solve(problem_, request_, known, bound);
  std::optional<Plan> plan;
  if (!solved.chains.empty()) plan = priced({solved.chains[0].chain.stages}, solved.chains[0].depths);
  if (!plan && request_.constraints.any() && request_.most_seconds == kNever)
    fail_constraints(problem_, request_, pinned_, ties_);
  if (!plan) fail();
  plan->predicted->lower_bound_seconds = std::min(seconds(*plan), bound);
  notes_.exact = states_.exact && first.exact;
  notes_.period_seconds = unequal || known.empty() ? bound : first.period_seconds;
  notes_.capped = solved.capped;
  return *std::move(plan);
}

/// By the formula, where minibatches do not overlap, ranks have several stages, or all is one stage.
Plan Planning::plan_of_search() {
  widen();
  std::vector<Solution> solutions;
  const bool several = schedule_facts(request_.schedule).several_stages;
  if (several) {
    solutions = interleaved_candidates(problem_, request_);
  } else if (std::optional<Solution> solution = first_solution()) {
    solutions.push_back(std::move(*solution));
    if (drains() && problem_.recompute == Recompute::kWhereNeeded && problem_.memory_bytes > 0) {
      Problem keeping = problem_;  // a stage may recompute for a depth that it turns out not to need
      keeping.recompute = Recompute::kNever;
      if (std::optional<Solution> other = search(keeping)) solutions.push_back(std::move(*other));
    }
  }
  if (solutions.empty() && request_.constraints.any()) fail_constraints(problem_, request_, pinned_, ties_);
  for (Problem fewer = problem_; solutions.empty() && problem_.one_in_flight && fewer.devices > 1;) {
    --fewer.devices;  // a costly cut may be what does not fit
    if (std::optional<Solution> solution = search(fewer)) solutions.push_back(std::move(*solution));
  }
  if (solutions.empty()) {
    if (problem_.one_in_flight) problem_.all_devices = false;
    fail();
  }
  const double bound = bound_seconds(problem_, request_, wide_ ? &*wide_ : nullptr, solutions.front());
  if (bound >= request_.most_seconds) fail();
  std::optional<Plan> best;
  for (const Solution& solution : solutions) {
    std::optional<Plan> other = priced(solution);
    if (other && several && !fits(*other, topology_)) continue;
    if (other && (!best || seconds(*other) < (1 - kRounding) * seconds(*best))) best = std::move(other);
  }
  if (!best) fail();
  best->predicted->lower_bound_seconds = std::min(seconds(*best), bound);
  notes_.exact = states_.exact && solutions.front().exact;
  notes_.period_seconds = solutions.front().period_seconds;
  return *std::move(best);
}

std::optional<Solution> Planning::solution_to(const Problem& problem) const {
  if (!request_.constraints.any()) return search(problem);
  Problem equal = problem;
  equal.inputs.forget_devices();
  std::optional<Solution> solution = search_with_constraints(equal, request_.constraints, pinned_);
  if (!solution || !problem.inputs.placed()) return solution;
  int64_t next = 0;
  for (FoundStage& stage : solution->stages)
    for (int64_t replica = 0; replica < stage.replicas; ++replica) stage.ranks.push_back(next++);
  return solution;
}

/// One stage, or stages of equal work, need no more cuts.
void Planning::widen() {
  if (states_.exact || problem_.single_stage || problem_.one_in_flight || problem_.inputs.placed()) return;
  wide_ = search_widely(flow_, problem_, states_, problem_.memory_bytes > 0, request_.effort < 1);
  if (wide_->solution) states_ = std::move(wide_->states);
}

/// The best by the formula.
std::optional<Solution> Planning::first_solution() {
  return wide_ && !request_.constraints.any() ? wide_->solution : solution_to(problem_);
}

void Planning::fail() {
  if (request_.most_seconds < kNever) throw InfeasibleError("nothing that is faster", "");
  if (schedule_facts(request_.schedule).several_stages)
    fail_interleaved(problem_, request_.schedule, request_.stages_per_rank);
  // The least memory is that of the least depths.
  problem_.least_depths = solved_ && !problem_.all_devices && !problem_.whole_interval &&
                          !problem_.inputs.split_backward && !problem_.inputs.devices_differ();
  fail_infeasible(problem_, request_.strategy, profile_.minibatch_samples, ties_);
}

/// With the depths given, or else those that suit it; nothing if none fit the memory.
std::optional<Plan> Planning::priced(const Solution& found, const std::vector<int64_t>& depths) const {
  return priced_plan(plan_of(found, states_, profile_), pricing(), depths);
}

/// The plan for devices with all the memory that anybody wants, if it fits those that there are: no plan
/// within the limit is faster, and a search that need not look at memory takes a fraction of the time.
/// Nothing if it does not fit, or where devices differ, as that search looks at each one's memory anyway.
std::optional<Plan> plan_of_plenty(const Profile& profile, const Topology& topology,
                                   const PlanRequest& request, PlanNotes* notes) {
  const auto& devices = topology.devices;
  const bool alike = std::all_of(devices.begin(), devices.end(), [&](const TopologyDevice& device) {
    return device.memory_bytes == devices.front().memory_bytes && device.relative_speed == 1 &&
           device.device_class.empty();
  });
  if (!alike || memory_limit_bytes(topology) == 0) return std::nullopt;
  Topology roomy = topology;
  roomy.memory_bytes = 0;
  for (TopologyDevice& device : roomy.devices) device.memory_bytes = 0;
  try {
    Planning planning(profile, roomy, request);
    Plan plan = planning.plan_for_training();
    if (!fits(plan, topology)) return std::nullopt;
    plan.topology_digest = document_digest(topology);
    if (notes != nullptr) *notes = planning.notes();
    return plan;
  } catch (const InfeasibleError&) {  // what there is not says the search within the limit
    if (request.most_seconds < kNever) throw;
    return std::nullopt;
  }
}

}  // namespace

Plan make_plan(const Profile& profile, const Topology& topology, const PlanRequest& request,
               PlanNotes* notes) {
  if (request.inference_period_seconds == 0)
    if (std::optional<Plan> plan = plan_of_plenty(profile, topology, request, notes)) return *std::move(plan);
  const bool infers = request.inference_period_seconds > 0;
  std::optional<Profile> for_inference;
  if (infers) for_inference = profile_for_inference(profile);
  Planning planning(infers ? *for_inference : profile, topology, request);
  Plan plan = infers ? planning.plan_for_inference() : planning.plan_for_training();
  if (infers) plan.profile_digest = measured_digest(profile);
  if (notes != nullptr) *notes = planning.notes();
  return plan;
}

}  // namespace pipewright
