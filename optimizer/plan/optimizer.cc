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
#include "optimizer/plan/run_rules.h"
#include "optimizer/plan/seeds.h"
#include "optimizer/plan/solve.h"
#include "optimizer/search/demands.h"
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
  question.recompute = row_named(recompute_choices(), "recompute", request.recompute).choice;
  return question;
}

/// One question on its way to its plan: what the searches are asked, what they answer, and the plan that this
/// becomes.
class Planning {
 public:
  Planning(const Profile& profile, const Topology& topology, const PlanRequest& asked);
  Planning(const Planning&) = delete;  // the question points to the states
  Planning& operator=(const Planning&) = delete;

  Plan plan_for_inference();
  Plan plan_for_training();
  PlanNotes notes() const { return notes_; }

 private:
  Plan plan_of_search();
  Plan plan_by_solving();
  std::vector<Answer> known_answers();
  std::vector<Answer> answers_as_on_one_level() const;
  bool drains() const { return pipewright::drains(request_); }
  /// What the demands leave to search for.
  std::optional<Answer> answer_to(const Question& question) const;
  void widen();
  std::optional<Answer> first_answer();
  [[noreturn]] void fail();

  Pricing pricing() const {
    return {&flow_, question_.inputs, rules_of(request_), question_.memory_bytes, profile_.minibatch_samples};
  }
  std::optional<Plan> priced(const Answer& found, const std::vector<int64_t>& depths = {}) const;

  const Profile& profile_;
  const Topology& topology_;
  const PlanRequest request_;
  const StrategyKind strategy_;
  Question question_;
  const Dataflow flow_;
  States states_;
  std::string ties_;  // which cuts tied parameters forbid

  std::vector<NodeSet> pinned_;
  std::optional<StagePlaces> places_;  // what is demanded, for solve()
  std::optional<WideAnswer> wide_;     // where there are too many cuts to search them all
  bool solved_ = false;                // by solve()
  PlanNotes notes_;
};

Planning::Planning(const Profile& profile, const Topology& topology, const PlanRequest& asked)
    : profile_(profile),
      topology_(topology),
      request_(with_run_rules(asked, topology.device_count())),
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
  solved_ = runs_overlapping(question_, request_) && !question_.single_stage;
  Plan plan = solved_ ? plan_by_solving() : plan_of_search();
  plan.strategy = request_.strategy;
  plan.profile_digest = measured_digest(profile_);
  plan.topology_digest = document_digest(topology_);
  PW_CHECK(fits(plan, topology_), "a plan that does not fit: " << plan.shape_text());
  notes_.cuts = states_.size();
  notes_.family = family_of(request_, question_);
  return plan;
}

/// The best as if all devices were like the profile's, each with a link of its own like one of the levels'.
std::vector<Answer> Planning::answers_as_on_one_level() const {
  std::vector<Answer> found;
  Question equal = question_;
  equal.inputs.forget_devices();
  for (const TopologyLevel& level : question_.inputs.levels) {
    equal.inputs.bandwidth_bytes_per_second = level.bandwidth_bytes_per_second;
    equal.inputs.latency_seconds = level.latency_seconds;
    // Not all have as little memory as the smallest.
    std::set<int64_t> memories = {question_.memory_bytes};
    if (question_.inputs.devices_differ()) memories.insert(0);
    for (const int64_t memory : memories) {
      equal.memory_bytes = memory;
      if (drains()) {
        for (Answer& answer : candidates(equal, request_, pinned_, /*brief=*/true))
          found.push_back(std::move(answer));
      } else if (std::optional<Answer> answer = answer_to(equal)) {
        found.push_back(std::move(*answer));
      }
    }
  }
  return found;
}

/// Where solve() begins.
std::vector<Answer> Planning::known_answers() {
  std::vector<Answer> known;
  if (begins_with_known(request_)) known = answers_of(*request_.known, question_, profile_);
  if (!known.empty()) return known;
  if (question_.inputs.placed()) return answers_as_on_one_level();
  if (drains()) return candidates(question_, request_, pinned_, request_.effort < 1);
  if (std::optional<Answer> answer = first_answer()) known.push_back(std::move(*answer));
  return known;
}

Plan Planning::plan_by_solving() {
  widen();
  if (request_.demands.any()) {
    places_.emplace(states_, request_.demands, pinned_, question_.least_stages);
    question_.places = &*places_;
  }
  const bool unequal = question_.inputs.devices_differ();
  const std::vector<Answer> known = known_answers();
  const Answer first = known.empty() ? Answer() : known.front();
  const double bound = unequal ? work_bound_seconds(question_)
                               : bound_seconds(question_, request_, wide_ ? &*wide_ : nullptr, first);
  if (bound >= request_.most_seconds) fail();
  const std::optional<SolvedChain> solved = solve(question_, request_, known, bound);
  std::optional<Plan> plan;
  if (solved) plan = priced({solved->chain.stages}, solved->depths);
  if (!plan && request_.demands.any() && request_.most_seconds == kNever)
    fail_demands(question_, request_, pinned_, ties_);
  if (!plan) fail();
  plan->predicted->lower_bound_seconds = std::min(seconds(*plan), bound);
  notes_.exact = states_.exact && first.exact;
  notes_.period_seconds = unequal || known.empty() ? bound : first.period_seconds;
  notes_.capped = solved->capped;
  return *std::move(plan);
}

/// By the formula, where minibatches do not overlap, ranks have several stages, or all is one stage.
Plan Planning::plan_of_search() {
  widen();
  std::vector<Answer> answers;
  const bool several = schedule_facts(request_.schedule).several_stages;
  if (drains()) {
    answers = candidates(question_, request_, pinned_, request_.effort < 1);
    if (!several && question_.recompute == Recompute::kWhereNeeded && question_.memory_bytes > 0) {
      Question keeping = question_;  // a stage may recompute for a depth that it turns out not to need
      keeping.recompute = Recompute::kNever;
      for (Answer& answer : candidates(keeping, request_, pinned_, request_.effort < 1))
        answers.push_back(std::move(answer));
    }
  } else if (std::optional<Answer> answer = first_answer()) {
    answers.push_back(std::move(*answer));
  }
  if (answers.empty() && request_.demands.any()) fail_demands(question_, request_, pinned_, ties_);
  for (Question fewer = question_; answers.empty() && question_.one_in_flight && fewer.devices > 1;) {
    --fewer.devices;  // a costly cut may be what does not fit
    if (std::optional<Answer> answer = search(fewer)) answers.push_back(std::move(*answer));
  }
  if (answers.empty()) {
    if (question_.one_in_flight) question_.all_devices = false;
    fail();
  }
  const double bound = bound_seconds(question_, request_, wide_ ? &*wide_ : nullptr, answers.front());
  if (bound >= request_.most_seconds) fail();
  std::optional<Plan> best;
  for (const Answer& answer : answers) {
    std::optional<Plan> other = priced(answer);
    if (other && several && !fits(*other, topology_)) continue;
    if (other && (!best || seconds(*other) < (1 - kRounding) * seconds(*best))) best = std::move(other);
  }
  if (!best) fail();
  best->predicted->lower_bound_seconds = std::min(seconds(*best), bound);
  notes_.exact = states_.exact && answers.front().exact;
  notes_.period_seconds = answers.front().period_seconds;
  return *std::move(best);
}

std::optional<Answer> Planning::answer_to(const Question& question) const {
  if (!request_.demands.any()) return search(question);
  Question equal = question;
  equal.inputs.forget_devices();
  std::optional<Answer> answer = search_with_demands(equal, request_.demands, pinned_);
  if (!answer || !question.inputs.placed()) return answer;
  int64_t next = 0;
  for (FoundStage& stage : answer->stages)
    for (int64_t replica = 0; replica < stage.replicas; ++replica) stage.ranks.push_back(next++);
  return answer;
}

/// One stage, or stages of equal work, need no more cuts.
void Planning::widen() {
  if (states_.exact || question_.single_stage || question_.one_in_flight || question_.inputs.placed()) return;
  wide_ = search_widely(flow_, question_, states_, question_.memory_bytes > 0, request_.effort < 1);
  if (wide_->answer) states_ = std::move(wide_->states);
}

/// The best by the formula.
std::optional<Answer> Planning::first_answer() {
  return wide_ && !request_.demands.any() ? wide_->answer : answer_to(question_);
}

void Planning::fail() {
  if (request_.most_seconds < kNever) throw InfeasibleError("nothing that is faster", "");
  if (schedule_facts(request_.schedule).several_stages)
    fail_interleaved(question_, request_.schedule, request_.stages_per_rank);
  // The least memory is that of the least depths.
  question_.least_depths = solved_ && !question_.all_devices && !question_.whole_interval &&
                           !question_.inputs.split_backward && !question_.inputs.devices_differ();
  fail_infeasible(question_, request_.strategy, profile_.minibatch_samples, ties_);
}

/// With the depths given, or else those that suit it; nothing if none fit the memory.
std::optional<Plan> Planning::priced(const Answer& found, const std::vector<int64_t>& depths) const {
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
