#include "runtime/schedule/cycle_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/error.h"
#include "runtime/schedule/timeline.h"

namespace pipewright {
namespace {

constexpr int64_t kMostNodes = 20000;

// Howard's algorithm: each node follows one wait; that makes circles and trees that lead to them. Work out
// what they say, let nodes follow waits that say more, until none does.
class PolicyIteration {
 public:
  /// Begins with the waits that were followed last, where there are as many: similar graphs have similar
  /// circles.
  void set(int32_t nodes, const std::vector<Wait>& waits) {
    const bool known = static_cast<size_t>(nodes) == policy_.size() && waits.size() == waits_.size();
    if (known) {
      for (int32_t v = 0; v < nodes; ++v) choice_[v] = policy_[v] - first_[v];
    } else {
      choice_.assign(nodes, -1);
    }
    first_.assign(nodes + 1, 0);
    for (const Wait& wait : waits) ++first_[wait.v + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    next_.assign(first_.begin(), first_.end() - 1);
    waits_.resize(waits.size());
    scale_ = 0;
    for (const Wait& wait : waits) {
      waits_[next_[wait.v]++] = {wait.seconds, static_cast<double>(wait.periods), wait.u};
      scale_ = std::max(scale_, wait.seconds);
    }
    policy_.resize(nodes);
    ratio_.resize(nodes);
    value_.assign(nodes, 0);
    state_.resize(nodes);
    for (int32_t v = 0; v < nodes; ++v) {
      PW_CHECK(first_[v] < first_[v + 1], "node " << v << " waits for nothing");
      policy_[v] = first_[v];
      if (choice_[v] >= 0 && first_[v] + choice_[v] < first_[v + 1]) {
        policy_[v] += choice_[v];
        continue;
      }
      for (int32_t i = first_[v]; i < first_[v + 1]; ++i)
        if (waits_[i].seconds > waits_[policy_[v]].seconds) policy_[v] = i;
    }
  }

  /// Or, once some circle takes more than `enough`, that.
  std::optional<double> largest(double enough) {
    for (passes_ = 1; passes_ <= 1000; ++passes_) {
      evaluate();
      const double found = *std::max_element(ratio_.begin(), ratio_.end());
      if (found > enough || !improve()) return found;
    }
    return std::nullopt;
  }

  /// Of the last largest().
  int64_t passes() const { return passes_; }

 private:
  struct Kept {
    double seconds = 0, periods = 0;
    int32_t u = 0;
  };

  void evaluate() {
    constexpr int8_t kNew = 0, kOnWalk = 1, kDone = 2;
    std::fill(state_.begin(), state_.end(), kNew);
    for (int32_t start = 0; start < static_cast<int32_t>(state_.size()); ++start) {
      walk_.clear();
      int32_t v = start;
      for (; state_[v] == kNew; v = waits_[policy_[v]].u) {
        state_[v] = kOnWalk;
        walk_.push_back(v);
      }
      if (state_[v] == kOnWalk) {  // a new circle through v, which keeps its value
        double seconds = 0, periods = 0;
        int32_t at = v;
        do {
          const Kept& wait = waits_[policy_[at]];
          seconds += wait.seconds;
          periods += wait.periods;
          at = wait.u;
        } while (at != v);
        PW_CHECK(periods > 0, "a circle of waits over " << periods << " periods: a deadlock");
        ratio_[v] = seconds / periods;
        state_[v] = kDone;
      }
      for (; !walk_.empty(); walk_.pop_back()) {
        const int32_t node = walk_.back();
        if (state_[node] == kDone) continue;
        const Kept& wait = waits_[policy_[node]];
        ratio_[node] = ratio_[wait.u];
        value_[node] = says(wait, ratio_[node]);
        state_[node] = kDone;
      }
    }
  }

  double says(const Kept& wait, double ratio) const {
    return value_[wait.u] + wait.seconds - ratio * wait.periods;
  }

  bool improve() {
    const double more = 1e-10 * scale_;  // beyond rounding
    bool improved = false;
    for (int32_t v = 0; v < static_cast<int32_t>(policy_.size()); ++v) {
      double ratio = ratio_[v], value = value_[v];
      for (int32_t i = first_[v]; i < first_[v + 1]; ++i) {
        const Kept& wait = waits_[i];
        const bool larger_circle = ratio_[wait.u] > ratio + more;
        const bool as_large = ratio_[wait.u] >= ratio - more;
        if (!larger_circle && !(as_large && says(wait, ratio) > value + more)) continue;
        ratio = ratio_[wait.u];
        value = says(wait, ratio);
        policy_[v] = i;
        improved = true;
      }
    }
    return improved;
  }

  std::vector<Kept> waits_;  // by the node that waits: of v, from first_[v] to first_[v + 1]
  std::vector<int32_t> first_, next_;
  std::vector<int32_t> policy_;        // by node, the wait that it follows
  std::vector<int32_t> choice_;        // the same, counted from the node's first; -1: none yet
  std::vector<double> ratio_, value_;  // by node: of its circle; of itself
  std::vector<int8_t> state_;
  std::vector<int32_t> walk_;
  double scale_ = 0;
  int64_t passes_ = 0;
};

// The waits of one period of the round robin. Node numbers: by stage, then F, B, SA, SG by minibatch of the
// period, then U by round.
class Waits {
 public:
  Waits(const PipelineShape& shape, const std::vector<StageTimes>& times, int64_t period)
      : shape_(shape), times_(times_with_frozen(shape, times)), period_(period) {
    for (int64_t stage = 0; stage < shape.stages(); ++stage) {
      turns_.emplace_back(shape, stage);
      first_.push_back(nodes_);
      nodes_ += static_cast<int32_t>(4 * period + period / turns_.back().round_length());
    }
    for (int64_t stage = 0; stage < shape.stages(); ++stage) {
      add_messages(stage);
      for (int64_t replica = 0; replica < shape.replicas[stage]; ++replica) add_rank(stage, replica);
    }
  }

  int32_t nodes() const { return nodes_; }
  const std::vector<Wait>& all() const { return waits_; }

 private:
  enum Kind : int64_t { kForward, kBackward, kSendActivation, kSendGradient, kUpdate };

  int32_t node(int64_t stage, Kind kind, int64_t index) const {
    return first_[stage] + static_cast<int32_t>(kind * period_ + index);
  }
  double seconds(int64_t stage, int64_t replica, Kind kind) const {
    const StageTimes& t = times_[stage];
    switch (kind) {
      case kForward:
        return t.of(replica).forward_seconds;
      case kBackward:
        return t.of(replica).seconds_of(ActionKind::kBackward);
      case kSendActivation:
        return stage + 1 < shape_.stages() ? t.send_activation_seconds : 0;
      case kSendGradient:
        return stage > 0 ? t.send_gradient_seconds : 0;
      case kUpdate:
        break;
    }
    return t.of(replica).step_seconds + (turns_[stage].replicas() > 1 ? t.reduce_seconds : 0);
  }
  /// `replica`: of the stage that is waited for.
  void add(int64_t from_stage, int64_t replica, Kind from, int64_t from_index, int64_t stage, Kind kind,
           int64_t index, int64_t periods) {
    waits_.push_back({node(from_stage, from, from_index), node(stage, kind, index),
                      seconds(from_stage, replica, from), periods});
  }

  void add_messages(int64_t stage) {
    for (int64_t k = 0; k < period_; ++k) {
      const int64_t replica = turns_[stage].replica_of(k);
      add(stage, replica, kForward, k, stage, kSendActivation, k, 0);
      add(stage, replica, kBackward, k, stage, kSendGradient, k, 0);
      if (stage + 1 == shape_.stages()) continue;
      add(stage, replica, kSendActivation, k, stage + 1, kForward, k, 0);
      if (shape_.receives_gradient(stage))
        add(stage + 1, turns_[stage + 1].replica_of(k), kSendGradient, k, stage, kBackward, k, 0);
    }
  }

  // The rank's actions in the order of their places, round and round; and its links one message at a time.
  void add_rank(int64_t stage, int64_t replica) {
    const StageTurns& turns = turns_[stage];
    const int64_t ahead = turns.run_ahead(shape_.in_flight[stage]), length = turns.round_length();
    struct Placed {
      int64_t place;  // in the period
      Kind kind;
      int64_t index;
      int64_t later;  // periods
    };
    const std::vector<int64_t> own = turns.minibatches_of(replica, {0, period_});
    std::vector<Placed> placed;
    // Each kind comes in the order of its places but for where the period begins anew.
    const auto put = [&](Kind kind, int64_t count, const auto& place_of, const auto& index_of) {
      const auto begin = static_cast<std::ptrdiff_t>(placed.size());
      std::ptrdiff_t anew = begin;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t place = place_of(i);
        placed.push_back({place % period_, kind, index_of(i), place / period_});
        const auto at = static_cast<std::ptrdiff_t>(placed.size()) - 1;
        if (at > begin && placed[at].place < placed[at - 1].place) anew = at;
      }
      std::rotate(placed.begin() + begin, placed.begin() + anew, placed.end());
      std::inplace_merge(placed.begin(), placed.begin() + begin, placed.end(),
                         [](const Placed& a, const Placed& b) {
                           return a.place != b.place ? a.place < b.place : a.kind < b.kind;
                         });
    };
    const auto count = static_cast<int64_t>(own.size());
    const auto minibatch = [&](int64_t i) { return own[i]; };
    put(kForward, count, minibatch, minibatch);
    put(
        kBackward, count, [&](int64_t i) { return own[i] + ahead; }, minibatch);
    put(
        kUpdate, period_ / length, [&](int64_t round) { return (round + 1) * length - 1 + ahead; },
        [](int64_t round) { return round; });
    for (size_t i = 0; i < placed.size(); ++i) {
      const bool last = i + 1 == placed.size();
      const Placed& a = placed[i];
      const Placed& b = placed[last ? 0 : i + 1];
      add(stage, replica, a.kind, a.index, stage, b.kind, b.index, a.later - b.later + (last ? 1 : 0));
    }
    for (const Kind link : {kSendActivation, kSendGradient})
      for (size_t i = 0; i < own.size(); ++i) {
        const bool last = i + 1 == own.size();
        add(stage, replica, link, own[i], stage, link, own[last ? 0 : i + 1], last ? 1 : 0);
      }
  }

  const PipelineShape& shape_;
  std::vector<StageTimes> times_;
  int64_t period_;
  std::vector<StageTurns> turns_;
  std::vector<int32_t> first_;
  int32_t nodes_ = 0;
  std::vector<Wait> waits_;
};

}  // namespace

std::optional<double> largest_cycle_ratio(int32_t nodes, const std::vector<Wait>& waits) {
  PolicyIteration iteration;
  iteration.set(nodes, waits);
  return iteration.largest(std::numeric_limits<double>::infinity());
}

std::optional<int64_t> endless_period(const PipelineShape& shape) {
  if (!shape.tied.empty()) return std::nullopt;
  return pipeline_period(shape, kMostNodes / (4 * shape.stages()));
}

struct EndlessPace::State {
  PolicyIteration iteration;
};

EndlessPace::EndlessPace() : state_(std::make_unique<State>()) {}
EndlessPace::~EndlessPace() = default;

std::optional<double> EndlessPace::minibatch_seconds(const PipelineShape& shape,
                                                     const std::vector<StageTimes>& times, double enough) {
  const std::optional<int64_t> period = endless_period(shape);
  if (!period) return std::nullopt;
  PipelineShape used = shape;  // depths are upper bounds
  used.in_flight = usable_in_flight(shape);
  const Waits waits(used, times, *period);
  state_->iteration.set(waits.nodes(), waits.all());
  const auto minibatches = static_cast<double>(*period);
  const std::optional<double> ratio = state_->iteration.largest(enough * minibatches);
  visited_ += *period * shape.stages() * (1 + state_->iteration.passes());
  if (!ratio) return std::nullopt;
  return *ratio / minibatches;
}

std::optional<double> endless_minibatch_seconds(const PipelineShape& shape,
                                                const std::vector<StageTimes>& times) {
  return EndlessPace().minibatch_seconds(shape, times);
}

}  // namespace pipewright
