#include "optimizer/plan/optimizer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

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
#include "optimizer/plan/pool.h"
#include "optimizer/plan/pool_seeds.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/plan/solve.h"
#include "optimizer/search/demands.h"
#include "optimizer/search/search.h"
#include "optimizer/search/thin_stages.h"
#include "optimizer/search/widen.h"

namespace pipewright {
namespace {

/// An exact number of devices takes a table by cut and number.
constexpr int64_t kMostCounted = 256;
/// A plan is faster than another by more than this part, which sums in another order make.
constexpr double kRounding = 1e-9;
/// A plan that is this much above its bound, or less, is not worth another question.
constexpr double kAtBound = 1.002;
/// One that is further above it may have missed what a search among fewer plans finds.
constexpr double kFarFromBound = 1.1;
constexpr double kNever = std::numeric_limits<double>::infinity();

double seconds(const Plan& plan) { return plan.predicted->minibatch_seconds; }

/// What a strategy asks of the search.
void ask(StrategyKind strategy, Question* q) {
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

bool recomputes(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const Stage& s) { return s.recompute; });
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

}  // namespace

CostInputs requested_cost_inputs(const Profile& profile, const Topology& topology,
                                 const PlanRequest& request) {
  CostInputs inputs = cost_inputs(profile, topology, request.optimizer_slots, request.class_profiles);
  if (request.ignore_crowd) inputs.crowd.reset();
  inputs.slow_links = request.slow_links;
  inputs.data_workers = request.data_workers;
  return inputs;
}

namespace {

/// What the search is asked, but for the states and what depends on them.
Question question_about(const Profile& profile, const Topology& topology, const PlanRequest& request) {
  Question question;
  question.inputs = requested_cost_inputs(profile, topology, request);
  question.devices = topology.device_count();
  question.memory_bytes = memory_limit_bytes(topology);
  question.all_devices = request.use_all_devices;
  question.devices_in_order = request.devices_in_order;
  question.recompute = row_named(recompute_choices(), "recompute", request.recompute).choice;
  return question;
}

/// Whether the best of all may be looked for among the plans of each strategy.
bool has_narrower(const PlanRequest& request) {
  return searched_strategy(request.strategy).kind == StrategyKind::kBest && !request.demands.any() &&
         request.effort >= 1 && !schedule_facts(request.schedule).several_stages;
}

/// One question on its way to its plan: what the search is asked, what it answers, and the plans that its
/// answers become, each with depths chosen by simulation.
class Planning {
 public:
  /// `asked_itself`: by another question, on its way to a plan of its own; then it asks fewer in turn.
  Planning(const Profile& profile, const Topology& topology, const PlanRequest& asked,
           bool asked_itself = false);
  Planning(const Planning&) = delete;  // the question points to the states
  Planning& operator=(const Planning&) = delete;

  Plan plan_for_inference();
  Plan plan_for_training();
  PlanNotes notes() const { return notes_; }

 private:
  Plan plan_of_search();
  Plan plan_on_unequal_devices();
  std::vector<Answer> answers_on_unequal_devices() const;
  bool drains() const { return pipewright::drains(request_); }
  /// What the demands leave to search for.
  std::optional<Answer> answer_to(const Question& question) const;
  void search_first();
  std::optional<Answer> first_answer();
  bool may_be_shallow() const;
  std::optional<Answer> shallow_answer() const;
  [[noreturn]] void fail();

  Pricing pricing() const {
    return {&flow_, question_.inputs, rules_of(request_), question_.memory_bytes, profile_.minibatch_samples};
  }
  std::optional<Plan> priced(const Answer& found, const std::vector<int64_t>& depths = {}) const;
  std::optional<Plan> best_of_answers(double bound);
  void try_without_recomputing(Plan* plan) const;
  void try_half_of_the_devices(Plan* plan) const;
  void try_narrower_strategies(double bound, Plan* plan) const;
  std::optional<Plan> plan_by_name(const char* strategy) const;
  bool is_thin(const Plan& plan) const;
  void try_other_links(double bound, Plan* plan) const;
  void take_if_faster_here(Plan other, Plan* plan) const;
  void take_if_faster(std::optional<Plan> other, Plan* plan) const;

  const Profile& profile_;
  const Topology& topology_;
  const PlanRequest request_;
  const bool asked_itself_;
  const StrategyKind strategy_;
  Question question_;
  const Dataflow flow_;
  States states_;
  std::string ties_;  // which cuts tied parameters forbid

  std::vector<NodeSet> pinned_;
  std::optional<StagePlaces> places_;  // what is demanded, for the pool
  std::optional<WideAnswer> wide_;     // where there are too many cuts to search them all
  bool pooled_ = false;                // the plan is the best of candidates as simulated, at any depths
  std::vector<Answer> begin_;          // candidates: of a pipeline that drains, or known
  std::optional<Answer> answer_;
  PlanNotes notes_;
};

Planning::Planning(const Profile& profile, const Topology& topology, const PlanRequest& asked,
                   bool asked_itself)
    : profile_(profile),
      topology_(topology),
      request_(with_run_rules(asked, topology.device_count())),
      asked_itself_(asked_itself),
      strategy_(searched_strategy(asked.strategy).kind),
      question_(question_about(profile, topology, request_)),
      flow_(profile, request_.class_profiles, ties_of(request_)),
      states_(enumerate_states(flow_, question_.memory_bytes > 0)) {
  question_.states = &states_;
  ask(strategy_, &question_);
  search_by_rules(request_, &question_);
  // One rank a stage cannot use more ranks than there are stages.
  if (question_.most_replicas == 1 && !question_.inputs.placed())
    question_.devices = std::min(question_.devices, longest_chain(states_));
  if (question_.all_devices && question_.devices > kMostCounted) {
    throw InputError("use of all devices: " + std::to_string(question_.devices) + " is not in 1.." +
                         std::to_string(kMostCounted),
                     "Without --use-all-devices any number can be planned for.");
  }
}

Plan Planning::plan_for_inference() {
  Plan plan = inference_plan(question_, request_.inference_period_seconds, flow_);
  plan.topology_digest = document_digest(topology_);
  notes_ = {states_.size(), states_.exact, seconds(plan)};
  return plan;
}

Plan Planning::plan_for_training() {
  check_demands(request_, &question_);
  if (question_.single_stage && question_.most_replicas < question_.devices)
    throw InfeasibleError("strategy 'dp': an update of " + std::to_string(question_.devices) +
                              " minibatches, one of each replica, is more than " +
                              std::to_string(question_.most_replicas),
                          "");
  pinned_ = pinned_nodes(profile_, request_.demands);
  ties_ = flow_.copies ? "" : forbidden_cuts_text(profile_);
  // Stages on devices in their order are another problem: it is soon solved.
  const bool unequal = question_.inputs.devices_differ() && !request_.devices_in_order &&
                       !question_.single_stage && !question_.one_in_flight &&
                       !schedule_facts(request_.schedule).several_stages;
  Plan plan = unequal ? plan_on_unequal_devices() : plan_of_search();
  plan.strategy = request_.strategy;
  plan.profile_digest = measured_digest(profile_);
  plan.topology_digest = document_digest(topology_);
  PW_CHECK(fits(plan, topology_), "a plan that does not fit: " << plan.shape_text());
  notes_.cuts = states_.size();
  notes_.family = family_of(request_, question_);
  return plan;
}

/// Where a search on unequal devices begins: the best by the period of stages on devices in a row; and, where
/// demands, drained pipelines or the use of all devices leave few chains, the best as if all devices were
/// like the profile's, on each level of links.
std::vector<Answer> Planning::answers_on_unequal_devices() const {
  std::vector<Answer> found;
  const auto add = [&](std::optional<Answer> answer) {
    if (answer) found.push_back(std::move(*answer));
  };
  if (begins_with_known(request_)) found = answers_of(*request_.known, question_, profile_);
  if (!found.empty()) return found;
  add(request_.effort < 1 && !request_.demands.any() ? near_answer_to(question_) : answer_to(question_));
  if (!drains() && !request_.demands.any() && !question_.all_devices) return found;
  Question equal = question_;
  equal.inputs.levels.clear();
  equal.inputs.speeds.clear();
  equal.inputs.classes.clear();
  equal.inputs.paces.clear();
  equal.inputs.memories.clear();
  for (const TopologyLevel& level : question_.inputs.levels) {
    equal.inputs.bandwidth_bytes_per_second = level.bandwidth_bytes_per_second;
    // Not all have as little memory as the smallest.
    for (const int64_t memory : std::set<int64_t>{0, question_.memory_bytes}) {
      equal.memory_bytes = memory;
      if (!drains()) {
        add(answer_to(equal));
        continue;
      }
      for (Answer& answer : candidates(equal, request_, pinned_)) found.push_back(std::move(answer));
    }
  }
  return found;
}

Plan Planning::plan_on_unequal_devices() {
  if (request_.demands.any()) {
    places_.emplace(states_, request_.demands, pinned_, question_.least_stages);
    question_.places = &*places_;
  }
  pooled_ = true;
  const double bound = work_bound_seconds(question_);
  if (bound >= request_.most_seconds) fail();
  const std::optional<SolvedChain> solved = solve(question_, request_, answers_on_unequal_devices(), bound);
  std::optional<Plan> plan;
  if (solved) plan = priced({solved->chain.stages}, solved->depths);
  if (!plan && request_.demands.any() && request_.most_seconds == kNever)
    fail_demands(question_, request_, pinned_, ties_);
  if (!plan) fail();
  plan->predicted->lower_bound_seconds = std::min(seconds(*plan), bound);
  notes_.exact = states_.exact;
  notes_.period_seconds = bound;
  notes_.capped = solved->capped;
  return *std::move(plan);
}

Plan Planning::plan_of_search() {
  search_first();
  const double bound = bound_seconds(question_, request_, wide_ ? &*wide_ : nullptr, *answer_);
  if (bound >= request_.most_seconds) fail();
  std::optional<Plan> best = best_of_answers(bound);
  if (!best) fail();
  Plan plan = std::move(*best);
  if (!pooled_) {  // the pool knows of all this itself
    try_without_recomputing(&plan);
  } else if (!drains() && request_.effort >= 1 && seconds(plan) > bound * kAtBound) {
    try_half_of_the_devices(&plan);
    try_narrower_strategies(bound, &plan);
    try_other_links(bound, &plan);
  }
  plan.predicted->lower_bound_seconds = std::min(seconds(plan), bound);
  notes_.exact = states_.exact && answer_->exact;
  notes_.period_seconds = answer_->period_seconds;
  return plan;
}

std::optional<Answer> Planning::answer_to(const Question& question) const {
  return request_.demands.any() ? search_with_demands(question, request_.demands, pinned_) : search(question);
}

/// Fills `answer_`; InfeasibleError if there is none.
void Planning::search_first() {
  // One stage, or stages of equal work, need no more cuts.
  const bool widen =
      !states_.exact && !question_.single_stage && !question_.one_in_flight && !question_.inputs.placed();
  if (widen)
    wide_ = search_widely(flow_, question_, states_, question_.memory_bytes > 0,
                          /*briefly=*/request_.effort < 1);
  if (wide_ && wide_->answer) states_ = std::move(wide_->states);
  pooled_ = Pricer::takes(question_, request_) && !question_.single_stage;
  if (request_.demands.any()) {
    places_.emplace(states_, request_.demands, pinned_, question_.least_stages);
    question_.places = &*places_;
  }
  answer_ = first_answer();
  if (!answer_) answer_ = shallow_answer();
  if (!answer_ && request_.demands.any()) fail_demands(question_, request_, pinned_, ties_);
  for (Question fewer = question_; !answer_ && question_.one_in_flight && fewer.devices > 1;) {
    --fewer.devices;  // a costly cut may be what does not fit
    answer_ = search(fewer);
  }
  if (!answer_) {
    if (question_.one_in_flight) question_.all_devices = false;
    fail();
  }
}

std::optional<Answer> Planning::first_answer() {
  if (pooled_ && begins_with_known(request_)) {
    begin_ = answers_of(*request_.known, question_, profile_);
    if (!begin_.empty()) return begin_.front();
  }
  if (drains()) {
    begin_ = candidates(question_, request_, pinned_);
    return begin_.empty() ? std::nullopt : std::optional<Answer>(begin_.front());
  }
  const bool slow = question_.inputs.placed() && !request_.demands.any() &&
                    (request_.effort < 1 || (question_.memory_bytes > 0 && states_.size() > kNearCuts));
  if (slow && (pooled_ ? !question_.all_devices : question_.one_in_flight)) return near_answer_to(question_);
  return wide_ && !request_.demands.any() ? wide_->answer : answer_to(question_);
}

/// Whether the pool has plans that are less deep than keeps a pipeline full.
bool Planning::may_be_shallow() const {
  return pooled_ && !question_.all_devices && !question_.whole_interval && !question_.inputs.split_backward;
}

/// Depths that keep the pipeline full may be what does not fit.
std::optional<Answer> Planning::shallow_answer() const {
  if (!may_be_shallow() || question_.memory_bytes == 0) return std::nullopt;
  Question shallow = question_;
  shallow.least_depths = true;
  shallow.inputs.levels.clear();  // memory does not depend on where a stage is
  return answer_to(shallow);
}

void Planning::fail() {
  if (request_.most_seconds < kNever) throw InfeasibleError("nothing that is faster", "");
  if (schedule_facts(request_.schedule).several_stages)
    fail_interleaved(question_, request_.schedule, request_.stages_per_rank);
  question_.least_depths = may_be_shallow();  // the least memory is that of the least depths
  fail_infeasible(question_, request_.strategy, profile_.minibatch_samples, ties_);
}

/// With the depths given, or else those that suit it; nothing if none fit the memory.
std::optional<Plan> Planning::priced(const Answer& found, const std::vector<int64_t>& depths) const {
  return priced_plan(plan_of(found, states_, profile_), pricing(), depths);
}

/// The fastest, as simulated, of those that the answers lead to.
std::optional<Plan> Planning::best_of_answers(double bound) {
  std::optional<Plan> best;
  for (const Answer& candidate : pooled_ ? std::vector<Answer>() : begin_) {
    std::optional<Plan> other = priced(candidate);
    if (!other || (best && seconds(*best) / seconds(*other) <= 1 + kRounding)) continue;
    best = std::move(other);
  }
  if (pooled_) {
    const std::optional<PoolAnswer> fastest = best_as_simulated(
        question_, request_, begin_.empty() ? std::vector<Answer>{*answer_} : begin_, bound);
    if (fastest) best = priced({fastest->candidate.stages}, fastest->depths);
    notes_.capped = fastest && fastest->capped;
  }
  if (!best && request_.most_seconds == kNever && (pooled_ || !drains())) best = priced({answer_->stages});
  return best;
}

void Planning::take_if_faster(std::optional<Plan> other, Plan* plan) const {
  if (other && seconds(*other) < (1 - kRounding) * seconds(*plan)) *plan = std::move(*other);
}

/// Of a plan for other devices or links, on these.
void Planning::take_if_faster_here(Plan other, Plan* plan) const {
  if (static_cast<int64_t>(other.stages.size()) < question_.least_stages) return;
  const PlanCost cost(other, loads_of_plan(other, flow_), question_.inputs);
  other.predicted = price(other, cost, profile_.minibatch_samples);
  take_if_faster(std::move(other), plan);
}

/// A stage may recompute for a depth that it turns out not to need.
void Planning::try_without_recomputing(Plan* plan) const {
  if (question_.recompute != Recompute::kWhereNeeded || !recomputes(*plan) || !drains()) return;
  Question keeping = question_;
  keeping.recompute = Recompute::kNever;
  for (const Answer& candidate : candidates(keeping, request_, pinned_))
    take_if_faster(priced(candidate), plan);
}

/// Local moves end where they end: among more devices that may be at a slower plan. So what half of the
/// servers (or of the devices, where there are no servers) are answered is a candidate too, and in turn what
/// half of these are.
void Planning::try_half_of_the_devices(Plan* plan) const {
  if (question_.all_devices || !topology_.devices.empty()) return;
  if (asked_itself_ && strategy_ != StrategyKind::kBest) return;  // the one that asks has asked for that
  Topology fewer = topology_;
  const auto outermost = std::find_if(fewer.levels.rbegin(), fewer.levels.rend(),
                                      [](const TopologyLevel& level) { return level.count > 1; });
  if (outermost == fewer.levels.rend()) return;
  outermost->count /= 2;
  // Shared out evenly among these, all work alone may take longer.
  const double work = work_before(states_, states_.last());
  if (work >= seconds(*plan) * static_cast<double>(fewer.device_count())) return;
  try {
    PlanRequest request = request_;
    request.most_seconds = seconds(*plan);
    Plan other = Planning(profile_, fewer, request, true).plan_for_training();
    take_if_faster_here(std::move(other), plan);
  } catch (const InfeasibleError&) {  // nothing of half of them fits
  }
}

/// The best of all is the best of each strategy. On levels that have little memory the way to the fastest
/// plan has many turns: a search that begins elsewhere may end at a faster one.
void Planning::try_narrower_strategies(double bound, Plan* plan) const {
  if (!has_narrower(request_)) return;
  if (question_.all_devices || !question_.inputs.placed() || question_.memory_bytes == 0) return;
  for (const char* narrower : {"hybrid", "straight", "dp"}) {
    if (seconds(*plan) <= bound * kFarFromBound) return;
    std::optional<Plan> other = plan_by_name(narrower);
    // Such a strategy may have stages that hardly compute, which the pool does without.
    if (other && is_thin(*other) && kThinTolerance * seconds(*other) >= seconds(*plan)) continue;
    take_if_faster(std::move(other), plan);
  }
}

/// From nothing: what is slower leads to what is faster. Nothing if none of these fits.
std::optional<Plan> Planning::plan_by_name(const char* strategy) const {
  PlanRequest request = request_;
  request.strategy = strategy;
  request.most_seconds = kNever;
  try {
    return Planning(profile_, topology_, request, true).plan_for_training();
  } catch (const InfeasibleError&) {
    return std::nullopt;
  }
}

/// Has a stage that computes less than its messages take.
bool Planning::is_thin(const Plan& plan) const {
  const std::vector<StageLoad> loads = loads_of_plan(plan, flow_);
  return std::any_of(loads.begin(), loads.end(), [&](const StageLoad& load) {
    return computes_less_than_messages(load, question_.inputs);
  });
}

/// Nor may what is answered for slower or faster links be faster on these: where memory is short, which of
/// several ways the search goes hangs on little.
void Planning::try_other_links(double bound, Plan* plan) const {
  if (asked_itself_ || question_.memory_bytes == 0 || question_.all_devices) return;
  if (question_.inputs.placed()) return;  // there it would take seconds
  if (seconds(*plan) <= bound * kFarFromBound) return;
  PlanRequest request = request_;
  request.most_seconds = kNever;  // there it may take longer
  for (const double factor : {1.0 / 3, 4.0}) {
    Topology other = topology_;
    for (TopologyLevel& level : other.levels) level.bandwidth_bytes_per_second *= factor;
    try {
      take_if_faster_here(Planning(profile_, other, request, true).plan_for_training(), plan);
    } catch (const InfeasibleError&) {  // with less room for messages nothing fits
    }
  }
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
  const bool answers = request.inference_period_seconds > 0;
  std::optional<Profile> of_answers;
  if (answers) of_answers = profile_of_answers(profile);
  Planning planning(answers ? *of_answers : profile, topology, request);
  Plan plan = answers ? planning.plan_for_inference() : planning.plan_for_training();
  if (answers) plan.profile_digest = measured_digest(profile);
  if (notes != nullptr) *notes = planning.notes();
  return plan;
}

}  // namespace pipewright
