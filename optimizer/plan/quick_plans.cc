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
#include "optimizer/plan/run_rules.h"
#include "optimizer/search/row_search.h"
#include "runtime/schedule/turns.h"

namespace pipewright {
namespace {

constexpr double kOfSearch = 0.5;       // of the work, for all searches along rows
constexpr double kOfRoughSearch = 0.5;  // of that
constexpr double kOfMoves = 0.6;        // of what is left, for local moves
constexpr size_t kFewQuick = 8;         // plans
constexpr double kSlower = 0.9;         // of the fastest device: counts as slow
// Steps (counted_work.h), from measurements: to simulate a pair of stages that all have as many replicas, a
// stage and a rank where they have not, with rounds of few minibatches and of many; to check the schedule,
// for a rank; to choose depths, for three stages of a straight pipeline, or in simulations for each stage of
// others.
constexpr double kInStepSteps = 20, kShortRoundSteps = 300, kLongRoundSteps = 4000, kCheckSteps = 10000;
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

/// With the devices renumbered: number k is `order[k]`.
Question in_order(const Question& question, const RankOrder& order) {
  Question q = question;
  const auto at = [&](const auto& values) {
    auto ordered = values;
    for (size_t k = 0; k < ordered.size(); ++k) ordered[k] = values[static_cast<size_t>(order[k])];
    return ordered;
  };
  q.inputs.speeds = at(question.inputs.speeds);
  q.inputs.paces = at(question.inputs.paces);
  q.inputs.classes = at(question.inputs.classes);
  q.inputs.memories = at(question.inputs.memories);
  return q;
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
    question_.states = &states_;
    question_.inputs = requested_cost_inputs(profile, topology, request_);
    question_.devices = topology.device_count();
    question_.memory_bytes = memory_limit_bytes(topology);
    question_.all_devices = true;
    question_.recompute = row_named(recompute_choices(), "recompute", request_.recompute).choice;
    search_by_rules(request_, &question_);
  }
  QuickPlanning(const QuickPlanning&) = delete;  // the question points to the states
  QuickPlanning& operator=(const QuickPlanning&) = delete;

  std::vector<Plan> plans() {
    add_in_force();
    search_rows();
    CountedWork moves = part(kOfMoves);
    const double given = moves.left();
    const ChainMoves chain_moves(question_, &moves);
    for (size_t i = 0, count = chains_.size(); i < count && moves.has(); ++i) {
      RankedChain better = chains_[i];
      chain_moves.improve(&better);
      if (better.seconds < chains_[i].seconds) chains_.push_back(std::move(better));
    }
    work_->spend(given - moves.left());
    sort();
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
  static bool same(const RankedChain& a, const RankedChain& b) {
    return a.seconds == b.seconds && std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(),
                                                b.stages.end(), [](const FoundStage& x, const FoundStage& y) {
                                                  return x.from == y.from && x.to == y.to &&
                                                         x.ranks == y.ranks && x.recompute == y.recompute;
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
    if (chain.seconds < std::numeric_limits<double>::infinity()) chains_.push_back(std::move(chain));
  }

  void add_in_force() {
    if (in_force_.world_size != question_.devices) return;
    for (const Answer& known : answers_of({in_force_}, question_, profile_)) {
      RankedChain chain{known.stages};
      for (size_t s = 0; s < chain.stages.size(); ++s) chain.stages[s].ranks = in_force_.stages[s].ranks;
      ChainMoves(question_, work_).price(&chain);
      add(std::move(chain));
    }
  }

  /// Roughly in all orders, then the best of these among all cuts.
  void search_rows() {
    struct Row {
      RankOrder order;
      int64_t least_replicas;
      double seconds;
    };
    CountedWork work = part(kOfSearch);
    const double given = work.left();
    std::vector<RankOrder> orders = orders_of_ranks(topology_, in_force_);
    add_orders_by_pace(&orders);
    std::vector<Row> rows;
    for (int64_t least = 1; least <= question_.devices; least *= 2) {
      for (const RankOrder& order : orders) {
        if (work.left() < (1 - kOfRoughSearch) * given) break;
        const std::optional<Answer> found = rough_row_answer(in_order(question_, order), least, &work);
        if (found) rows.push_back({order, least, add_found(*found, order, &work)});
      }
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Row& a, const Row& b) { return a.seconds < b.seconds; });
    for (const Row& row : rows) {
      if (!work.has()) break;
      const std::optional<Answer> found =
          row_answer(in_order(question_, row.order), row.least_replicas, row.seconds, &work);
      if (found) add_found(*found, row.order, &work);
    }
    work_->spend(given - work.left());
    sort();
  }

  /// With the ranks that the numbers stand for, and all of them; what that takes.
  double add_found(const Answer& found, const RankOrder& order, CountedWork* work) {
    RankedChain chain{found.stages};
    std::vector<bool> used(order.size());
    for (FoundStage& stage : chain.stages) {
      for (int64_t& rank : stage.ranks) {
        used[static_cast<size_t>(rank)] = true;
        rank = order[static_cast<size_t>(rank)];
      }
    }
    std::vector<int64_t> idle;
    for (size_t k = 0; k < order.size(); ++k)
      if (!used[k]) idle.push_back(order[k]);
    const ChainMoves moves(question_, work);
    moves.price(&chain);
    moves.use_all(std::move(idle), &chain);
    const double seconds = chain.seconds;
    add(std::move(chain));
    return seconds;
  }

  /// Slow ranks first, and last: stages of few nodes fit a slow rank in one place, not in another.
  void add_orders_by_pace(std::vector<RankOrder>* orders) const {
    const std::vector<double>& paces = question_.inputs.paces;
    if (paces.empty() || topology_.levels.size() > 1) return;
    const double fastest = *std::max_element(paces.begin(), paces.end());
    for (const bool first : {true, false}) {
      RankOrder order = order_of_stages(in_force_, question_.devices);
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
    if (!spend(sums + (priced_ ? once + schedule_check_steps(question_.devices) : 0))) return std::nullopt;
    const bool straight = shape.stages() == question_.devices;
    const double depths =
        straight ? kStraightDepthSteps * stages * stages * stages : kDepthSimulations * stages * once;
    const bool chosen = priced_ && spend(depths);
    Plan plan = plan_of({chain.stages}, states_, profile_);
    plan.strategy = request_.strategy;
    if (priced_) {
      const Pricing pricing{&flow_, question_.inputs, rules_of(request_), question_.memory_bytes,
                            profile_.minibatch_samples};
      return priced_plan(std::move(plan), pricing, {}, chosen);
    }
    run_by(rules_of(request_), &plan);
    PlanCost cost(plan, loads_of_plan(plan, flow_), question_.inputs);
    if (!choose_depths(question_.memory_bytes, false, &plan, &cost)) return std::nullopt;
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
  Question question_;
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
