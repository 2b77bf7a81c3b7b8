#include "optimizer/plan/seeds.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "optimizer/search/constraints.h"
#include "optimizer/search/few_cuts.h"

namespace pipewright {
namespace {

constexpr double kFewShapes = 3000;
constexpr int64_t kMostEven = 16;  // stages
constexpr int kFewCuts = 40;
constexpr double kSeedProof = 2e-3;  // seeds are priced anyway, and moved from

class EveryShape {
 public:
  EveryShape(const Problem& q, double seconds) : q_(q), seconds_(seconds) {}

  /// An upper bound of their number, or more than `most`.
  double count(double most) const {
    const int last = q_.states->last();
    const int64_t stages = std::min<int64_t>(q_.devices, last);
    // Ways to go on from each state to the end in so many stages.
    std::vector<double> chains(static_cast<size_t>(last) + 1, 0);
    chains[static_cast<size_t>(last)] = 1;
    double shapes = 0;
    double ways = 1;  // to give s stages at most all devices
    for (int64_t s = 1; s <= stages && shapes <= most; ++s) {
      std::vector<double> longer(chains.size(), 0);
      for (int i = 0; i < last; ++i)
        for (const int j : q_.states->after(i))
          longer[static_cast<size_t>(i)] += chains[static_cast<size_t>(j)];
      chains = std::move(longer);
      ways *= static_cast<double>(q_.devices - s + 1) / static_cast<double>(s);
      shapes += chains[0] * ways;
    }
    return shapes;
  }

  std::vector<Shape> all() {
    shape_.cuts = {0};
    extend(q_.devices);
    return std::move(shapes_);
  }

 private:
  void extend(int64_t left) {
    const int from = shape_.cuts.back();
    if (from == q_.states->last()) return shapes_.push_back(shape_);
    for (const int next : q_.states->after(from)) {
      const double mine = work_before(*q_.states, next) - work_before(*q_.states, from);
      for (int64_t m = 1; m <= left; ++m) {
        if (mine >= seconds_ * static_cast<double>(m)) continue;
        shape_.cuts.push_back(next);
        shape_.replicas.push_back(m);
        extend(left - m);
        shape_.cuts.pop_back();
        shape_.replicas.pop_back();
      }
    }
  }

  const Problem& q_;
  double seconds_;
  Shape shape_;
  std::vector<Shape> shapes_;
};

/// The problem as on one level of links, for each bandwidth and number of devices that is worth trying;
/// `brief`: the bandwidths as they are, on all devices.
std::vector<Problem> on_one_level(const Problem& problem, bool brief) {
  const std::vector<TopologyLevel>& levels = problem.inputs.levels;
  if (levels.empty()) return {problem};
  std::set<double> bandwidths;
  std::set<int64_t> counts = {problem.devices};
  int64_t group = 1;
  for (const TopologyLevel& level : levels) {
    group *= level.count;
    bandwidths.insert(level.bandwidth_bytes_per_second);
    if (brief) continue;
    if (group <= problem.devices) counts.insert(group);
    if (problem.devices / 2 > group) counts.insert(problem.devices / 2 / group * group);
    // As if it were shared out among those who have it in common.
    const auto sharers = static_cast<double>(level.shared ? level.count : group / level.count);
    if (sharers > 1) bandwidths.insert(level.bandwidth_bytes_per_second / sharers);
  }
  std::vector<Problem> problems;
  for (const int64_t devices : counts) {
    for (const double bandwidth : bandwidths) {
      Problem q = problem;
      q.inputs.forget_devices();
      q.inputs.bandwidth_bytes_per_second = bandwidth;
      q.inputs.latency_seconds = levels.back().latency_seconds;
      q.devices = devices;
      q.all_devices = false;
      problems.push_back(std::move(q));
    }
  }
  return problems;
}

/// With room for several depths, where memory is limited.
std::vector<Problem> with_depths(const std::vector<Problem>& problems) {
  std::vector<Problem> all;
  for (Problem q : problems) {
    all.push_back(q);
    if (q.memory_bytes == 0) continue;
    Problem anything = q;  // a limit may not bind, and what recomputes may fit
    anything.memory_bytes = 0;
    all.push_back(std::move(anything));
    q.least_depths = true;
    all.push_back(q);
    q.least_depths = false;
    for (const int64_t extra : {1, 2, 4}) {
      q.extra_in_flight = extra;
      all.push_back(q);
    }
  }
  return all;
}

}  // namespace

Shape shape_of(const std::vector<FoundStage>& stages) {
  Shape shape{{0}, {}};
  for (const FoundStage& stage : stages) {
    shape.cuts.push_back(stage.to);
    shape.replicas.push_back(stage.replicas);
  }
  return shape;
}

double work_before(const States& states, int state) {
  const State& at = states.states[static_cast<size_t>(state)];
  return at.forward_seconds + at.backward_seconds;
}

std::vector<Shape> single_stages(const Problem& q) {
  std::vector<Shape> shapes;
  for (int64_t m = 1; m <= q.devices; m += m < 64 ? 1 : m / 8) shapes.push_back({{0, q.states->last()}, {m}});
  shapes.push_back({{0, q.states->last()}, {q.devices}});
  return shapes;
}

std::vector<Shape> even_shapes(const Problem& q) {
  const States& states = *q.states;
  const double work = work_before(states, states.last());
  const auto saved = static_cast<double>(std::max<int64_t>(1, states.states.back().saved_bytes));
  std::vector<Shape> shapes;
  for (const double by_work : {1.0, 0.5, 0.0}) {
    if (by_work < 1 && q.memory_bytes == 0) break;
    const auto part = [&](int state) {
      const auto kept = static_cast<double>(states.states[static_cast<size_t>(state)].saved_bytes);
      return by_work * (work > 0 ? work_before(states, state) / work : 0) + (1 - by_work) * kept / saved;
    };
    for (int64_t stages = 2; stages <= std::min<int64_t>({q.devices, states.last(), kMostEven}); ++stages) {
      // The cheapest cut within a quarter of a stage, or the nearest.
      Shape shape{{0}, std::vector<int64_t>(static_cast<size_t>(stages), q.devices / stages)};
      for (int64_t s = 1; s < stages && shape.cuts.back() >= 0; ++s) {
        const double wanted = static_cast<double>(s) / static_cast<double>(stages);
        int best = -1;
        const auto rank = [&](int state) {
          const double off = std::abs(part(state) - wanted) * static_cast<double>(stages);
          const auto bytes = static_cast<double>(states.states[static_cast<size_t>(state)].cut_bytes);
          return off <= 0.25 ? std::pair(0.0, bytes) : std::pair(off, bytes);
        };
        for (const int state : states.after(shape.cuts.back()))
          if (state < states.last() && (best < 0 || rank(state) < rank(best))) best = state;
        shape.cuts.push_back(best);
      }
      if (shape.cuts.back() < 0) continue;
      shape.cuts.push_back(states.last());
      shapes.push_back(std::move(shape));
    }
  }
  return shapes;
}

std::optional<std::vector<Shape>> every_shape(const Problem& problem, double seconds) {
  EveryShape every(problem, seconds);
  if (every.count(kFewShapes) > kFewShapes) return std::nullopt;
  return every.all();
}

std::vector<Solution> searched_seeds(const Problem& problem, bool brief) {
  std::vector<Solution> seeds;
  // Among some of the cuts: local moves find the right ones.
  const std::vector<int> numbers = thinned(*problem.states, kFewCuts);
  const States some = some_of(*problem.states, numbers);
  using Counts = std::vector<int64_t>;
  for (const Problem& q : brief ? on_one_level(problem, true) : with_depths(on_one_level(problem, false))) {
    if (q.all_devices || q.single_stage) {
      if (q.single_stage || q.devices <= 64)
        if (auto found = search(q)) seeds.push_back(std::move(*found));
      continue;
    }
    if (q.memory_bytes == 0 && !brief)
      if (auto found = search(q)) seeds.push_back(std::move(*found));
    Problem few = q;
    few.states = &some;
    const int64_t most = std::min<int64_t>(q.devices, some.last());
    for (Solution& found :
         search_up_to_stages(few, brief ? Counts{most, 4, 2} : Counts{most, 6, 4, 3, 2}, kSeedProof))
      seeds.push_back(named_as(numbers, std::move(found)));
  }
  return seeds;
}

}  // namespace pipewright
