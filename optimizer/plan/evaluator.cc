#include "optimizer/plan/evaluator.h"

#include <algorithm>
#include <cmath>

#include "graph/limits.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/price/depths.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

constexpr double kPaceProof = 1e-3;
constexpr double kShortest = 1e-12;          // seconds, where nothing takes any
constexpr double kLongerPaces[] = {1.3, 2};  // than the fastest pace
// Where all the depth there is room for takes so much more than is of use, no depths are of use.
constexpr double kHopeless = 1.05;

std::vector<FloorStage> floor_stages(const Chain& chain) {
  std::vector<FloorStage> stages;
  stages.reserve(chain.stages.size());
  for (const FoundStage& stage : chain.stages) stages.push_back({stage.replicas, stage.ranks, stage.shares});
  return stages;
}

}  // namespace

Evaluator::Evaluator(const Problem& problem, const PlanRequest& request)
    : q_(problem),
      request_(request),
      facts_(problem, request),
      floor_(problem.inputs),
      drains_(drains(request)),
      coupled_(schedule_facts(request.schedule).depth == DepthChoice::kSearched),
      bounds_crossing_(facts_of(problem.inputs.weights).bounds_crossing) {
  if (q_.memory_bytes == 0 || q_.recompute != Recompute::kWhereNeeded) return;
  prefixes_.assign(q_.states->states.back().done.size() + 1, -1);
  for (int state = 0; state < q_.states->size(); ++state) {
    const NodeSet& done = q_.states->states[state].done;
    FirstNodes first;
    for (size_t v = done.find_first(); v != NodeSet::npos; v = done.find_next(v)) {
      if (v == first.count) first.all_before = v + 1;
      first.end = v + 1;
      ++first.count;
    }
    if (first.end == first.count) prefixes_[first.count] = state;
    first_nodes_.push_back(first);
  }
}

double Evaluator::trip_seconds(const FloorStage& stage, const StageLoad& load) const {
  const double waits = q_.inputs.split_backward ? floor_.waited_part(load) : 1;
  return waits * floor_.least_compute_seconds(load, stage);
}

int64_t Evaluator::needed_depth(const FoundStage& stage) const {
  return q_.whole_interval ? facts_.replicas_part(stage.replicas) : 1;
}

std::vector<Evaluator::StageRoom> Evaluator::rooms_of(const Chain& chain) {
  Chain keeping = chain;
  for (FoundStage& stage : keeping.stages) {
    stage.recompute = false;
    stage.kept_to = -1;
    stage.shares.clear();
  }
  const std::vector<StageLoad> loads = facts_.loads(keeping);
  const std::vector<double> between = floor_.pace(loads, floor_stages(keeping)).between_seconds;
  std::vector<StageRoom> rooms;
  rooms.reserve(loads.size());
  for (size_t s = 0; s < loads.size(); ++s) {
    FoundStage& stage = keeping.stages[s];
    StageRoom room;
    room.between = s + 1 < loads.size() ? between[s] : 0;
    room.frozen = loads[s].frozen;
    room.needed = needed_depth(stage);
    for (const bool again : {false, true}) {
      StageLoad load = loads[s];
      load.recompute = stage.recompute = again;
      room.trip[again] = trip_seconds({stage.replicas, stage.ranks, stage.shares}, load);
      room.busy[again] = busy_seconds(stage, load);
      room.most[again] = facts_.depth_that_fits(stage, load, kMostInFlight);
      if (again) room.load = std::move(load);
    }
    rooms.push_back(std::move(room));
  }
  return rooms;
}

int Evaluator::kept_with(int64_t depth, const FoundStage& stage, const StageRoom& room) {
  // Mostly what is kept grows from one to the next.
  int kept = -1;
  const FirstNodes &from = first_nodes_[stage.from], &to = first_nodes_[stage.to];
  size_t low = std::max(from.end, from.count + 1), high = std::min(to.all_before, to.count - 1) + 1;
  while (low < high) {
    size_t nodes = low + (high - low) / 2;
    while (nodes < high && prefixes_[nodes] < 0) ++nodes;
    if (nodes == high) {
      high = low + (high - low) / 2;
      continue;
    }
    StageLoad load = room.load;
    FoundStage keeping = stage;
    keeping.recompute = true;
    keeping.kept_to = prefixes_[nodes];
    keep_to(*q_.states, stage.from, keeping.kept_to, &load);
    if (facts_.depth_that_fits(keeping, load, depth) >= depth) {
      kept = prefixes_[nodes];
      low = nodes + 1;
    } else {
      high = low + (high - low) / 2;
    }
  }
  return kept;
}

bool Evaluator::runs_within(double seconds, bool abreast, const std::vector<StageRoom>& rooms, bool keeps,
                            Chain* chain) {
  double behind = 0;
  int64_t ahead = 0;  // so far as the stages behind run, all before them have to
  for (size_t s = rooms.size(); s-- > 0;) {
    const StageRoom& room = rooms[s];
    FoundStage& stage = chain->stages[s];
    int64_t depth = 0;
    const auto within = [&](bool again) {
      const double trip = behind + room.trip[again] + room.between;
      depth = room.needed;
      if (!room.frozen) {
        const auto m = static_cast<double>(stage.replicas);
        const double behind_first = abreast || q_.inputs.minibatches_per_update > 0 ? 0 : (m - 1) / m;
        const double paced = std::ceil((trip / m / seconds + behind_first) * (1 - kPaceProof));
        depth = std::max({depth, static_cast<int64_t>(std::min(paced, static_cast<double>(kMostInFlight))),
                          coupled_ ? 1 + (ahead + stage.replicas - 1) / stage.replicas : 1});
      }
      return room.most[again] >= depth && room.busy[again] <= seconds;
    };
    stage.recompute = q_.recompute == Recompute::kAlways;
    stage.kept_to = -1;
    double trip = room.trip[stage.recompute];
    if (!within(stage.recompute)) {
      if (q_.recompute != Recompute::kWhereNeeded || !within(true)) return false;
      stage.recompute = true;
      trip = room.trip[1];
      if (keeps) {
        const int64_t usual = assumed_in_flight(q_, room.load.later_devices, stage.replicas);
        stage.kept_to = kept_with(std::clamp(usual, depth, room.most[1]), stage, room);
        if (stage.kept_to >= 0) {
          StageLoad load = room.load;
          keep_to(*q_.states, stage.from, stage.kept_to, &load);
          trip = trip_seconds({stage.replicas, stage.ranks, stage.shares}, load);
        }
      }
    }
    if (room.frozen) continue;
    ahead = (depth - 1) * stage.replicas;
    behind += trip + room.between;
  }
  return true;
}

std::vector<Chain> Evaluator::recomputing(Chain chain) {
  for (FoundStage& stage : chain.stages) {
    stage.recompute = q_.recompute == Recompute::kAlways;
    stage.kept_to = -1;
  }
  if (q_.memory_bytes == 0) return {chain};
  const std::vector<StageRoom> rooms = rooms_of(chain);
  double slowest = kShortest, fastest = kShortest;
  for (const StageRoom& room : rooms) {
    fastest = std::max(fastest, room.busy[0]);
    slowest += 2 * (room.trip[1] + room.between) + room.busy[1];
  }
  std::vector<Chain> ways;
  const auto add = [&](double seconds, bool abreast) {
    if (!runs_within(seconds, abreast, rooms, /*keeps=*/true, &chain)) return;
    const auto same = [&](const Chain& way) {
      return std::equal(way.stages.begin(), way.stages.end(), chain.stages.begin(),
                        [](const FoundStage& a, const FoundStage& b) {
                          return a.recompute == b.recompute && a.kept_to == b.kept_to;
                        });
    };
    if (std::none_of(ways.begin(), ways.end(), same)) ways.push_back(chain);
  };
  for (const bool abreast : {false, true}) {
    double low = fastest, high = slowest;
    if (!runs_within(high, abreast, rooms, false, &chain)) break;
    if (runs_within(low, abreast, rooms, false, &chain)) high = low;
    while (high - low > kPaceProof * high) {
      const double middle = low + (high - low) / 2;
      (runs_within(middle, abreast, rooms, false, &chain) ? high : low) = middle;
    }
    add(high, abreast);
    if (q_.recompute != Recompute::kWhereNeeded) break;
    for (const double slower : kLongerPaces)
      if (!abreast) add(slower * high, abreast);
  }
  return ways;
}

NetworkPace Evaluator::floor(Chain* chain) {
  std::vector<StageLoad> loads = facts_.loads(*chain);
  if (q_.memory_bytes > 0) {
    for (size_t s = 0; s < loads.size(); ++s) {
      const FoundStage& stage = chain->stages[s];
      const int64_t least = needed_depth(stage);
      if (facts_.depth_that_fits(stage, loads[s], least) < least) return {kInfeasible, kInfeasible};
    }
  }
  for (size_t s = 0; s < loads.size() && q_.inputs.devices_differ(); ++s) {
    FoundStage& found = chain->stages[s];
    found.shares.clear();
    if (found.replicas == 1) continue;
    std::vector<double> seconds;
    for (const int64_t rank : found.ranks) seconds.push_back(compute_seconds_on(loads[s], q_.inputs, rank));
    const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
    if (*least < *most) found.shares = best_shares(seconds, q_.inputs.most_minibatches_of_round);
    if (std::all_of(found.shares.begin(), found.shares.end(), [](int64_t share) { return share == 1; }))
      found.shares.clear();
  }
  NetworkPace pace = pace_of(*chain, loads);
  if (drains_) {  // and fills
    double trip = 0;
    for (size_t s = 0; s < loads.size(); ++s)
      if (!loads[s].frozen)
        trip += trip_seconds({chain->stages[s].replicas, chain->stages[s].ranks, {}}, loads[s]) +
                (s + 1 < loads.size() ? pace.between_seconds[s] : 0);
    pace.likely_seconds += trip / static_cast<double>(q_.interval);
  }
  return pace;
}

Evaluator::Busiest Evaluator::busiest(const Chain& chain) {
  std::vector<StageLoad> loads = facts_.loads(chain);
  std::vector<StagePeriod> periods;
  std::vector<Stage> stages;
  for (const FoundStage& found : chain.stages) {
    Stage& stage = stages.emplace_back();
    stage.ranks = found.ranks;
    stage.shares = found.shares;
  }
  if (q_.inputs.placed()) {
    periods = price_placed(loads, stages, q_.inputs).stages;
  } else {
    for (size_t s = 0; s < loads.size(); ++s)
      periods.push_back(stage_period(loads[s], chain.stages[s].replicas, q_.inputs));
  }
  Busiest most{{0}};
  for (size_t s = 0; s < periods.size(); ++s)
    if (periods[s].total_seconds() > most.seconds) most = {{s}, periods[s].total_seconds()};
  if (q_.inputs.slow_links.empty()) return most;
  const std::vector<StageTimes> messages = slowed_messages(stages, loads, q_.inputs);
  for (size_t s = 0; s < messages.size(); ++s) {
    const double seconds = message_period_seconds(messages[s], chain.stages[s].replicas);
    if (seconds <= most.seconds) continue;
    const bool forward = messages[s].send_activation_seconds >= messages[s].send_gradient_seconds;
    most = {{s, forward ? s + 1 : s - 1}, seconds};
  }
  return most;
}

double Evaluator::busy_seconds(const FoundStage& stage, const StageLoad& load) const {
  const auto m = static_cast<double>(stage.replicas);
  double rate = 0;
  if (q_.inputs.speeds.empty()) {
    rate = m / load.compute_seconds();
  } else {
    for (const int64_t rank : stage.ranks) rate += 1 / compute_seconds_on(load, q_.inputs, rank);
  }
  const auto update =
      static_cast<double>(minibatches_of_update(stage.replicas, load.later_devices, q_.inputs));
  return 1 / rate + step_seconds(load, q_.inputs) / update;
}

NetworkPace Evaluator::pace_of(const Chain& chain, const std::vector<StageLoad>& loads) {
  const std::vector<FloorStage> stages = floor_stages(chain);
  NetworkPace pace = floor_.pace(loads, stages);
  if (q_.memory_bytes > 0 || bounds_crossing_) wait_for_room(chain, stages, loads, &pace);
  return pace;
}

void Evaluator::wait_for_room(const Chain& chain, const std::vector<FloorStage>& stages,
                              const std::vector<StageLoad>& loads, NetworkPace* pace) {
  // A stage runs no further ahead than those before it (usable_in_flight()).
  std::vector<int64_t> most;
  int64_t ahead = kMostInFlight * kMostInFlight;  // of none: before the first stage there is no other
  for (size_t s = 0; s < loads.size(); ++s) {
    // Minibatches of a turn for one of the busiest replica's, as StageTurns::run_ahead() has it, which may be
    // less where shares are uneven, and so leave room for one more.
    const std::vector<int64_t>& shares = stages[s].shares;
    const int64_t turn = stages[s].round();
    const int64_t largest = shares.empty() ? 1 : *std::max_element(shares.begin(), shares.end());
    const auto room = [&](int64_t minibatches) {
      return std::min(kMostInFlight, 1 + minibatches * largest / turn + (shares.empty() ? 0 : 1));
    };
    int64_t deepest = coupled_ ? room(ahead) : kMostInFlight;
    if (bounds_crossing_)  // as choose_depths() has it
      deepest = std::min(deepest, room(minibatches_of_update(turn, loads[s].later_devices, q_.inputs)));
    most.push_back(facts_.depth_that_fits(chain.stages[s], loads[s], deepest));
    if (!loads[s].frozen) ahead = (most.back() - 1) * turn / largest;
  }
  const double busy = pace->floor_seconds;
  double trip = 0;  // of a minibatch from the stage on, there and back
  for (size_t s = loads.size(); s-- > 0 && !loads[s].frozen;) {
    trip += trip_seconds(stages[s], loads[s]) + (s + 1 < loads.size() ? pace->between_seconds[s] : 0);
    if (most[s] < 1) continue;
    const auto replicas = static_cast<double>(stages[s].replicas), fits = static_cast<double>(most[s]);
    pace->floor_seconds = std::max(pace->floor_seconds, trip / replicas / fits);
    // The busiest replica has its part of a turn in flight, and waits for the others' where all update.
    const std::vector<int64_t>& shares = stages[s].shares;
    const double largest =
        shares.empty() ? 1 : static_cast<double>(*std::max_element(shares.begin(), shares.end()));
    const double part = largest / static_cast<double>(stages[s].round());
    const double behind = q_.inputs.minibatches_per_update > 0 ? 0 : largest * (1 - part) * busy;
    pace->likely_seconds = std::max(pace->likely_seconds, (trip * part + behind) / fits);
  }
  pace->likely_seconds = std::max(pace->likely_seconds, pace->floor_seconds);
}

std::optional<ChainPrice> Evaluator::with_all_depth(const Chain& chain, const Plan& plan,
                                                    const PlanCost& cost, double limit) {
  PipelineShape shape = shape_of(plan);
  std::vector<int64_t> most, usual = pipedream_in_flight(shape.replicas);
  for (size_t s = 0; s < cost.loads.size(); ++s) {
    const int64_t part = StageTurns(shape, static_cast<int64_t>(s)).most_of_one_replica(shape.microbatches);
    const int64_t memory = memory_limit_bytes(q_.inputs, q_.memory_bytes, chain.stages[s].ranks);
    most.push_back(in_flight_that_fits(cost.loads[s], shape.replicas[s], part, memory, cost.inputs));
    if (most.back() < 1) return std::nullopt;
    usual[s] = std::min(usual[s], most[s]);
  }
  most.back() = 1;  // the last stage holds nothing back; running ahead it would keep gradients waiting
  ChainPrice price{kInfeasible, {}};
  for (const std::vector<int64_t>& depths : {most, usual}) {
    shape.in_flight = depths;
    shape.in_flight = usable_in_flight(shape);
    const double seconds =
        settled_minibatch_seconds(plan.schedule, shape, cost.times, cost.shared, &spent_, limit);
    if (seconds < price.seconds) price = {seconds, shape.in_flight};
  }
  return price;
}

std::optional<ChainPrice> Evaluator::price(const Chain& chain, double floor, double limit,
                                           int64_t most_spent) {
  std::vector<StageLoad> loads = facts_.loads(chain);
  Plan plan = facts_.plan(chain, &loads);
  PlanCost cost(plan, std::move(loads), q_.inputs);
  DepthAim aim;
  aim.floor_seconds = floor;
  aim.most_seconds = limit;
  aim.known = &known_depths_;
  aim.most_simulated = most_spent;
  const bool searched = schedule_facts(request_.schedule).depth == DepthChoice::kSearched;
  if (drains_ && searched) {
    const std::optional<ChainPrice> roomy = with_all_depth(chain, plan, cost, kHopeless * limit);
    if (!roomy || roomy->seconds > kHopeless * limit) return roomy;
  }
  if (!choose_depths(q_.memory_bytes, true, &plan, &cost, &aim)) return std::nullopt;
  spent_ += aim.simulated;
  double seconds = drains_ && searched ? 0 : aim.seconds;
  if (seconds == 0) {  // or too large for choosing depths
    seconds = settled_minibatch_seconds(plan.schedule, shape_of(plan), cost.times, cost.shared, &spent_);
  }
  ChainPrice price;
  price.seconds = price_seconds(plan, cost, seconds);
  for (const Stage& stage : plan.stages) price.depths.push_back(stage.in_flight);
  return price;
}

}  // namespace pipewright
