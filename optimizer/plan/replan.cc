#include "optimizer/plan/replan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "graph/document.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/plan_sequence.h"
#include "optimizer/plan/quick_plans.h"
#include "optimizer/plan/renamed_ranks.h"
#include "optimizer/plan/run_rules.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {
namespace {

// Ranks that differ by less are equally slow.
constexpr double kEqual = 1.1;

// Steps (counted_work.h) of make_plan() for a node and a pair of ranks, for ranks that differ and for equal
// ones: from measurements, rather too many.
constexpr double kUnequalSearchSteps = 5000, kEqualSearchSteps = 3000;
// Of make_plan() on devices that differ, with all of its effort; and the least of it.
constexpr double kFullEffortSteps = 2.1 * CountedWork::kStepsPerSecond, kLeastEffort = 0.01;
// Where links are slow: of the work that is left, for plans with links as they are, and for those as if all
// were slow.
constexpr double kOfPlansWithLinks = 0.27;
// Where make_plan() is asked too, for quick plans.
constexpr double kOfQuickPlans = 0.4;
// Of all that is made once, for a node; for a pair of ranks, of renaming them and of clearing slow links.
constexpr double kNodeSteps = 1000, kRenamingSteps = 100, kLinkSteps = 100;

/// With half of the work that is left: what it begins with is not counted.
Plan plan_with_half_the_work(const Profile& profile, const Topology& topology, PlanRequest request,
                             CountedWork* work) {
  request.effort = std::clamp(work->left() / 2 / kFullEffortSteps, kLeastEffort, 1.0);
  work->spend(request.effort * kFullEffortSteps);
  return make_plan(profile, topology, request);
}

bool equally_slow(const Slowdowns& slowdowns) {
  const auto [least, most] = std::minmax_element(slowdowns.ranks.begin(), slowdowns.ranks.end());
  return slowdowns.nodes.empty() && *most < kEqual * *least;
}

bool same_stages(const Plan& a, const Plan& b) {
  return std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                    [](const Stage& x, const Stage& y) {
                      return x.nodes == y.nodes && x.ranks == y.ranks && x.shares == y.shares &&
                             x.in_flight == y.in_flight && x.recompute == y.recompute &&
                             x.recompute_ratio == y.recompute_ratio && x.split == y.split;
                    });
}

/// Several orders of devices often lead to one plan, which is then priced, swapped and deepened once.
void drop_repeated(std::vector<Plan>* plans) {
  std::vector<Plan> once;
  for (Plan& plan : *plans)
    if (std::none_of(once.begin(), once.end(), [&](const Plan& other) { return same_stages(plan, other); }))
      once.push_back(std::move(plan));
  *plans = std::move(once);
}

/// What make_plan() in all orders takes, roughly.
double search_steps(const Profile& profile, const Topology& topology, const SlowLinks& links) {
  const auto ranks = static_cast<double>(topology.device_count());
  const double steps = topology.devices.empty() ? kEqualSearchSteps : kUnequalSearchSteps;
  return (links.empty() ? 1 : 2) * steps * static_cast<double>(profile.nodes.size()) * ranks * ranks;
}

/// As if all links were as slow as the slowest: for thinner cuts, fewer stages.
Topology with_all_links_slow(Topology topology, const SlowLinks& links) {
  double slowest = 1;
  for (const SlowLink& link : links) slowest = std::max(slowest, link.slowdown);
  for (TopologyLevel& level : topology.levels) {
    level.bandwidth_bytes_per_second /= slowest;
    level.latency_seconds *= slowest;
  }
  return topology;
}

PlanRequest with_links(PlanRequest request, const SlowLinks& links) {
  request.slow_links = links;
  return request;
}

struct PricedPlan {
  Plan plan;
  double seconds = 0;
};

/// Plans to choose from, the one in force first.
class Choice {
 public:
  Choice(const Profile& profile, const Topology& topology, const PlanRequest& request, const Plan& in_force,
         const SlowLinks& links, const std::vector<Plan>& known, CountedWork* work)
      : profile_(profile),
        topology_(topology),
        request_(request),
        slowed_(with_links(request, links)),
        in_force_(in_force),
        links_(links),
        known_(known),
        work_(work),
        searched_(!quickly_planned(request) || work->has(search_steps(profile, topology, links))) {}

  std::vector<PricedPlan> plans() {
    std::vector<Plan> plans = planned(topology_);
    if (!links_.empty()) {
      for (Plan& plan : planned(with_all_links_slow(topology_, links_))) {
        plan.predicted.reset();
        plans.push_back(std::move(plan));
      }
    }
    for (Plan& plan : plans) {
      if (!spend(kRenamingSteps * square(topology_.device_count()))) break;
      plan =
          renamed_for_fewest_moves(in_force_, std::move(plan), profile_, topology_, request_.optimizer_slots);
    }
    plans.insert(plans.begin(), known_.begin(), known_.end());
    plans.insert(plans.begin(), in_force_);
    drop_repeated(&plans);
    if (!links_.empty()) {
      for (size_t i = 0, count = plans.size(); i < count; ++i)
        if (i == 0 || spend(kLinkSteps * square(topology_.device_count())))
          plans.push_back(clear_of_slow_links(plans[i], profile_, topology_, slowed_));
      drop_repeated(&plans);
    }
    for (size_t i = 0; i < plans.size(); ++i)
      if (i == 0 || links_.empty() || spend(steps_of(plans[i]))) add(std::move(plans[i]));
    // make_plan() has chosen depths for links as they are.
    if (!links_.empty() || !searched_) deepen();
    return std::move(priced_);
  }

 private:
  static double square(int64_t number) { return static_cast<double>(number) * static_cast<double>(number); }

  /// Whether there is work left for so many steps. A search is over when it is over.
  bool spend(double steps) {
    if (!searched_ && !work_->has(steps)) return false;
    work_->spend(steps);
    return true;
  }

  std::vector<Plan> planned(const Topology& topology) {
    try {
      return found(topology);
    } catch (const InfeasibleError&) {
      return {};  // the one in force goes on
    }
  }

  std::vector<Plan> found(const Topology& topology) {
    if (searched_) {
      if (topology.devices.empty() || !quickly_planned(request_))
        return {make_plan(profile_, topology, request_)};
      std::vector<Plan> plans = found_quickly(topology, kOfQuickPlans, /*priced=*/true);
      plans.push_back(plan_with_half_the_work(profile_, topology, request_, work_));
      return plans;
    }
    // Slow links leave something to do after that. What they take is priced later; where ranks differ too
    // there is no work to simulate plans twice.
    return found_quickly(topology, links_.empty() ? 1 : kOfPlansWithLinks,
                         links_.empty() || topology.devices.empty());
  }

  /// With a part of the work that is left.
  std::vector<Plan> found_quickly(const Topology& topology, double part, bool priced) {
    const double given = part * std::max(0.0, work_->left());
    CountedWork work(given / CountedWork::kStepsPerSecond);
    std::vector<Plan> plans = quick_plans(profile_, topology, request_, in_force_, &work, priced);
    work_->spend(given - work.left());
    return plans;
  }

  void add(Plan plan) {
    const double seconds = links_.empty() && plan.predicted
                               ? plan.predicted->minibatch_seconds
                               : price_seconds(plan, cost_of_plan(plan, profile_, topology_, slowed_));
    priced_.push_back({std::move(plan), seconds});
  }

  /// To price it.
  double steps_of(const Plan& plan) const {
    return kPlanSumSteps * static_cast<double>(profile_.nodes.size()) + simulation_steps(shape_of(plan));
  }

  /// The fastest, while there is work for it.
  void deepen() {
    std::vector<PricedPlan> by_time = priced_;
    std::stable_sort(by_time.begin(), by_time.end(),
                     [](const PricedPlan& a, const PricedPlan& b) { return a.seconds < b.seconds; });
    for (const PricedPlan& each : by_time) {
      if (links_.empty() && same_stages(each.plan, in_force_)) continue;  // it is as deep as is wanted
      if (!spend((1 + kMostDeeper) * steps_of(each.plan))) break;
      Plan deep = deepened_plan(each.plan, profile_, topology_, slowed_);
      if (!same_stages(deep, each.plan)) add(std::move(deep));
    }
  }

  const Profile& profile_;
  const Topology& topology_;
  const PlanRequest& request_;  // for plans with the links as the topology has them
  const PlanRequest slowed_;    // for prices
  const Plan& in_force_;
  const SlowLinks& links_;
  const std::vector<Plan>& known_;
  CountedWork* work_;
  const bool searched_;  // with make_plan()
  std::vector<PricedPlan> priced_;
};

void slow_down(ProfiledNode* node, double times) {
  node->forward_seconds *= times;
  node->backward_input_seconds *= times;
  node->backward_weight_seconds *= times;
  for (std::optional<double>* seconds : {&node->forward_launch_seconds, &node->backward_launch_seconds,
                                         &node->forward_gap_seconds, &node->backward_gap_seconds})
    if (*seconds) **seconds *= times;
}

/// Makes ranks so slow. Those on which some work is slower than other become classes of devices of their own,
/// each with the profile that it would have.
ClassProfiles slow_down(Topology* topology, const Slowdowns& slowdowns, const Profile& profile) {
  topology->devices.resize(slowdowns.ranks.size());
  for (size_t rank = 0; rank < slowdowns.ranks.size(); ++rank) {
    TopologyDevice& device = topology->devices[rank];
    if (device.host.empty()) device.host = "host";
    device.relative_speed /= slowdowns.ranks[rank];
  }
  ClassProfiles classes;
  for (const auto& [rank, times] : slowdowns.nodes) {
    PW_CHECK(times.size() == profile.nodes.size(),
             "slowdowns of " << times.size() << " nodes, the profile has " << profile.nodes.size());
    TopologyDevice& device = topology->devices.at(static_cast<size_t>(rank));
    device.device_class = "slow rank " + std::to_string(rank);
    Profile measured = profile;
    for (size_t v = 0; v < times.size(); ++v)
      slow_down(&measured.nodes[v], times[v] / slowdowns.ranks[static_cast<size_t>(rank)]);
    classes.emplace(device.device_class, std::move(measured));
  }
  return classes;
}

/// The best there is for these times and devices.
Replanned best_next(const Profile& profile, const Topology& topology, ClassProfiles classes,
                    const Plan& in_force, const SlowLinks& links, const std::vector<Plan>& known,
                    double budget_seconds, int64_t most_minibatches_per_update) {
  Replanned again;
  CountedWork work(budget_seconds);
  work.spend(kNodeSteps * static_cast<double>(profile.nodes.size()));
  PlanRequest request = request_like(in_force);
  request.use_all_devices = true;  // a rank without a stage would have to be the last
  request.class_profiles = std::move(classes);
  request.most_minibatches_per_update = most_minibatches_per_update;

  Plan stays = in_force;
  stays.predicted = evaluate_plan(in_force, profile, topology, request);
  std::vector<Plan> others;
  for (Plan plan : known) {
    if (plan.schedule != in_force.schedule || plan.weights != in_force.weights ||
        plan.world_size != in_force.world_size || same_stages(plan, in_force))
      continue;
    plan.predicted = evaluate_plan(plan, profile, topology, request);
    others.push_back(std::move(plan));
  }
  work.spend(schedule_check_steps(in_force.world_size));
  std::vector<PricedPlan> plans = Choice(profile, topology, request, stays, links, others, &work).plans();
  again.now_seconds = plans.front().seconds;
  double fastest = again.now_seconds;
  for (const PricedPlan& plan : plans) fastest = std::min(fastest, plan.seconds);
  std::optional<std::pair<int64_t, double>> best;  // bytes, seconds
  for (auto& [plan, seconds] : plans) {
    if (seconds > kEquallyFast * fastest) continue;
    const auto moves = profiled_moves(profile, request.optimizer_slots, in_force, plan);
    int64_t bytes = 0;
    for (const PlanMove& move : moves) bytes += move.bytes;
    if (best && *best <= std::pair(bytes, seconds)) continue;
    best = {bytes, seconds};
    again.move_seconds = move_seconds(moves, requested_cost_inputs(profile, topology, request));
    again.next_seconds = seconds;
    again.plan = std::move(plan);
  }
  if (!again.plan.predicted) again.plan.predicted = evaluate_plan(again.plan, profile, topology, request);
  if (!same_stages(again.plan, in_force)) {
    again.plan.profile_digest = measured_digest(profile);
    again.plan.topology_digest = document_digest(topology);
  }
  again.links = links;
  return again;
}

}  // namespace

Replanned plan_again(const Profile& profile, const Topology& topology, const Plan& in_force,
                     const Slowdowns& slowdowns, const SlowLinks& links, const std::vector<Plan>& known,
                     double budget_seconds, int64_t most_minibatches_per_update) {
  Topology slowed = topology;
  ClassProfiles classes;
  if (!equally_slow(slowdowns)) classes = slow_down(&slowed, slowdowns, profile);
  Replanned again = best_next(profile, slowed, std::move(classes), in_force, links, known, budget_seconds,
                              most_minibatches_per_update);
  again.slowdowns = slowdowns;
  return again;
}

Replanned plan_as_if_nodes_were_slow(const Profile& profile, const Topology& topology, const Plan& in_force,
                                     const Slowdowns& slowdowns, const SlowLinks& links,
                                     const std::vector<Plan>& known, double budget_seconds,
                                     int64_t most_minibatches_per_update) {
  Profile slowed = profile;
  std::map<std::string, double> slowdown_of;
  for (const Stage& stage : in_force.stages) {
    double pace = 0;
    for (const int64_t rank : stage.ranks) pace += 1 / slowdowns.ranks[static_cast<size_t>(rank)];
    for (const std::string& node : stage.nodes)
      slowdown_of[node] = static_cast<double>(stage.ranks.size()) / pace;
  }
  if (!equally_slow({slowdowns.ranks}))
    for (ProfiledNode& node : slowed.nodes) slow_down(&node, slowdown_of.at(node.name));
  Replanned again =
      best_next(slowed, topology, {}, in_force, {}, known, budget_seconds, most_minibatches_per_update);
  again.slowdowns = slowdowns;
  again.links = links;
  return again;
}

}  // namespace pipewright
