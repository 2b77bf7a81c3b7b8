#include "optimizer/plan/quick_plans.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/rows.h"
#include "optimizer/cost/recompute.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/plan/chain_moves.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/found_plan.h"
#include "optimizer/plan/known_plans.h"
#include "optimizer/plan/row_orders.h"
#include "optimizer/plan/row_seeds.h"
#include "optimizer/plan/run_rules.h"
#include "runtime/schedule/turns.h"

namespace pipewright {
namespace {

constexpr double kOfSearch = 0.4;  // of the work, for all searches along rows
constexpr double kOfMoves = 0.45;  // of what is left, for local moves
constexpr size_t kFewQuick = 9;    // plans
constexpr double kSlower = 0.9;    // of the fastest device: counts as slow
// Steps (counted_work.h), from measurements: to simulate a pair of stages that all have as many replicas, a
// stage and a rank where they have not, with rounds of few minibatches and of many; to check the schedule,
// for a rank; to choose depths, for three stages of a straight pipeline, or in simulations for each stage of
// others.
constexpr double kInStepSteps = 20, kShortRoundSteps = 120, kLongRoundSteps = 4000, kCheckSteps = 5000;
constexpr int64_t kLongRound = 64;
constexpr double kStraightDepthSteps = 60, kDepthSimulations = 3;

/// The cuts of the plan in force, and between them those along the profile's order.
States states_along(const Plan& in_force, const Dataflow& flow) {
  std::unordered_map<std::string, size_t> number;
  for (size_t v = 0; v < flow.profile.nodes.size(); ++v) number[flow.profile.nodes[v].name] = v;
  std::vector<NodeSet> cuts;
  NodeSet done(flow.profile.nodes.size());
  for (const Stage& stage : in_force.stages) {
    for (const std::string& node : stage.nodes) {
      done.set(number.at(node));
      cuts.push_back(done);
    }
  }
  return states_of(flow, std::move(cuts));
}

class QuickPlanning {
 public:
  QuickPlanning(const Profile& profile, const Topology& topology, const PlanRequest& asked,
                const Plan& in_force, CountedWork* work, bool priced)
      : profile_(profile),
        topology_(topology),
        request_(with_run_rules(asked, topology.device_count())),
        in_force_(in_force),
        work_(work),
        priced_(priced),
        flow_(profile, request_.class_profiles, ties_of(request_)),
        states_(states_along(in_force, flow_)) {
    problem_.states = &states_;
    problem_.inputs = requested_cost_inputs(profile, topology, request_);
    problem_.devices = topology.device_count();
    problem_.memory_bytes = memory_limit_bytes(topology);
    problem_.all_devices = true;
    problem_.recompute = row_named(recompute_choices(), "recompute", request_.recompute).choice;
    search_by_rules(request_, &problem_);
  }
  QuickPlanning(const QuickPlanning&) = delete;  // the problem points to the states
  QuickPlanning& operator=(const QuickPlanning&) = delete;

  std::vector<Plan> plans() {
    add_in_force();
    search_rows();
    CountedWork moves = part(kOfMoves);
    const double given = moves.left();
    const ChainMoves chain_moves(problem_, &moves);
    for (size_t i = 0, count = chains_.size(); i < count && moves.has(); ++i) {
      RankedChain better = chains_[i];
      chain_moves.improve(&better);
      if (better.seconds < chains_[i].seconds) add(std::move(better));
    }
    work_->spend(given - moves.left());
    sort();
    // Replicas of unequal pace wait for each other, which the formula does not know: the fastest without any
    // is among those that are simulated.
    const auto straight = std::find_if(chains_.begin(), chains_.end(), [](const RankedChain& chain) {
      return std::all_of(chain.stages.begin(), chain.stages.end(),
                         [](const FoundStage& stage) { return stage.replicas == 1; });
    });
    if (straight != chains_.end()) std::rotate(chains_.begin(), straight, straight + 1);
    std::vector<Plan> plans;
    for (auto chain = chains_.begin(); chain != chains_.end() && plans.size() < kFewQuick; ++chain) {
      if (std::any_of(chains_.begin(), chain,
                      [&](const RankedChain& before) { return same(before, *chain); }))
        continue;  // several rows and moves lead to one
      if (std::optional<Plan> plan = plan_of_chain(*chain)) plans.push_back(std::move(*plan));
    }
    return plans;
  }

 private:
  /// Of stages on ranks that no plan tells apart.
  bool same(const RankedChain& a, const RankedChain& b) const {
    const auto places = [&](const FoundStage& stage) {
      std::vector<int64_t> kinds = stage.ranks;
      for (int64_t& rank : kinds) {
        if (topology_.levels.size() > 1) break;
        int64_t kind = 0;
        while (!problem_.inputs.same_kind(kind, rank)) ++kind;
        rank = kind;
      }
      std::sort(kinds.begin(), kinds.end());
      return kinds;
    };
    return a.seconds == b.seconds &&
           std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                      [&](const FoundStage& x, const FoundStage& y) {
                        return x.from == y.from && x.to == y.to && x.recompute == y.recompute &&
                               x.ranks.size() == y.ranks.size() && places(x) == places(y);
                      });
  }
  bool spend(double steps) {
    if (!work_->has(steps)) return false;
    work_->spend(steps);
    return true;
  }
  CountedWork part(double of_what_is_left) const {
    return CountedWork(std::max(0.0, of_what_is_left * work_->left() / CountedWork::kStepsPerSecond));
  }

  void sort() {
    std::stable_sort(chains_.begin(), chains_.end(),
                     [](const RankedChain& a, const RankedChain& b) { return a.seconds < b.seconds; });
  }

  void add(RankedChain chain) {
    const bool allowed = std::all_of(chain.stages.begin(), chain.stages.end(), [&](const FoundStage& stage) {
      return stage.replicas <= problem_.most_replicas;
    });
    if (allowed && chain.seconds < std::numeric_limits<double>::infinity())
      chains_.push_back(std::move(chain));
  }

  void add_in_force() {
    if (in_force_.world_size != problem_.devices) return;
    for (const Solution& known : solutions_of({in_force_}, problem_, profile_)) {
      RankedChain chain{known.stages};
      for (size_t s = 0; s < chain.stages.size(); ++s) chain.stages[s].ranks = in_force_.stages[s].ranks;
      ChainMoves(problem_, work_).price(&chain);
      add(std::move(chain));
    }
  }

  /// Without replicas, then with a few and more of them, along each order.
  void search_rows() {
    CountedWork work = part(kOfSearch);
    const double given = work.left();
    std::vector<RankOrder> orders = orders_of_ranks(topology_, in_force_);
    add_orders_by_pace(&orders);
    RowSearch search(problem_);
    RowProblem asked;
    const auto along_all = [&] {
      for (const RankOrder& order : orders) {
        if (!work.has()) break;
        asked.order = order;
        for (Chain& found : search.chains(asked, &work)) add_found({std::move(found.stages)}, &work);
      }
    };
    along_all();  // without replicas
    asked.most_replicas = problem_.devices;
    for (; asked.least_replicas <= problem_.devices; asked.least_replicas *= 2) along_all();
    work_->spend(given - work.left());
    sort();
  }

  /// With all ranks.
  void add_found(RankedChain chain, CountedWork* work) {
    std::vector<bool> used(static_cast<size_t>(problem_.devices));
    for (FoundStage& stage : chain.stages) {
      stage.replicas = std::ssize(stage.ranks);
      for (const int64_t rank : stage.ranks) used[static_cast<size_t>(rank)] = true;
    }
    std::vector<int64_t> idle;
    for (int64_t rank = 0; rank < problem_.devices; ++rank)
      if (!used[static_cast<size_t>(rank)]) idle.push_back(rank);
    const ChainMoves moves(problem_, work);
    moves.price(&chain);
    moves.use_all(std::move(idle), &chain);
    add(std::move(chain));
  }

  /// Slow ranks first, and last: stages of few nodes fit a slow rank in one place, not in another.
  void add_orders_by_pace(std::vector<RankOrder>* orders) const {
    const std::vector<double>& paces = problem_.inputs.paces;
    if (paces.empty() || topology_.levels.size() > 1) return;
    const double fastest = *std::max_element(paces.begin(), paces.end());
    for (const bool first : {true, false}) {
      RankOrder order = order_of_stages(in_force_, problem_.devices);
      std::stable_partition(order.begin(), order.end(), [&](int64_t rank) {
        return (paces[static_cast<size_t>(rank)] < kSlower * fastest) == first;
      });
      if (std::find(orders->begin(), orders->end(), order) == orders->end()) orders->push_back(order);
    }
  }

  /// Nothing where the memory does not hold it, or no work is left to simulate it.
  std::optional<Plan> plan_of_chain(const RankedChain& chain) {
    PipelineShape shape;
    for (const FoundStage& stage : chain.stages) {
      shape.replicas.push_back(stage.replicas);
      shape.shares.push_back(stage.shares);
    }
    const auto stages = static_cast<double>(shape.stages());
    const double once = simulation_steps(shape);
    const double sums = kPlanSumSteps * static_cast<double>(profile_.nodes.size());
    if (!spend(sums + (priced_ ? once + schedule_check_steps(problem_.devices) : 0))) return std::nullopt;
    const bool straight = shape.stages() == problem_.devices;
    const double depths =
        straight ? kStraightDepthSteps * stages * stages * stages : kDepthSimulations * stages * once;
    const bool chosen = priced_ && spend(depths);
    Plan plan = plan_of({chain.stages}, states_, profile_);
    plan.strategy = request_.strategy;
    if (priced_) {
      const Pricing pricing{&flow_, problem_.inputs, rules_of(request_), problem_.memory_bytes,
                            profile_.minibatch_samples};
      return priced_plan(std::move(plan), pricing, {}, chosen);
    }
    run_by(rules_of(request_), &plan);
    PlanCost cost(plan, loads_of_plan(plan, flow_), problem_.inputs);
    if (!choose_depths(problem_.memory_bytes, false, &plan, &cost)) return std::nullopt;
    return plan;
  }

  const Profile& profile_;
  const Topology& topology_;
  const PlanRequest request_;
  const Plan& in_force_;
  CountedWork* work_;
  const bool priced_;
  const Dataflow flow_;
  const States states_;
  Problem problem_;
  std::vector<RankedChain> chains_;
};

}  // namespace

bool quickly_planned(const PlanRequest& request) {
  const ScheduleFacts& schedule = schedule_facts(request.schedule);
  return schedule.trains() && !schedule.several_stages && schedule.kind != ScheduleKind::kModelParallel;
}

double simulation_steps(const PipelineShape& shape) {
  const auto stages = static_cast<double>(shape.stages());
  std::vector<int64_t> cycles;
  bool shares = false;
  for (int64_t s = 0; s < shape.stages(); ++s) {
    const StageTurns turns(shape, s);
    cycles.push_back(turns.cycle_length());
    shares = shares || turns.cycle_length() != turns.replicas();
  }
  if (!shares && std::adjacent_find(cycles.begin(), cycles.end(), std::not_equal_to<>()) == cycles.end())
    return kInStepSteps * stages * stages;
  int64_t round = 1;
  for (const int64_t each : cycles) round = std::min(std::lcm(round, each), kLongRound);
  return (round < kLongRound ? kShortRoundSteps : kLongRoundSteps) * stages *
         static_cast<double>(shape.ranks());
}

double schedule_check_steps(int64_t ranks) { return kCheckSteps * static_cast<double>(ranks); }

std::vector<Plan> quick_plans(const Profile& profile, const Topology& topology, const PlanRequest& request,
                              const Plan& in_force, CountedWork* work, bool priced) {
  return QuickPlanning(profile, topology, request, in_force, work, priced).plans();
}

}  // namespace pipewright
