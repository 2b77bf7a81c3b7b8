#include "optimizer/plan/seeds.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace pipewright {
namespace {

constexpr double kFewShapes = 3000;
constexpr int64_t kMostEven = 16;  // stages

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

}  // namespace pipewright
