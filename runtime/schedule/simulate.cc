#include "runtime/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/error.h"
#include "runtime/schedule/dry_run.h"

namespace pipewright {
namespace {

void check_times(const std::vector<int64_t>& replicas, const std::vector<StageTimes>& times) {
  PW_CHECK_EQ(times.size(), replicas.size());
  for (const StageTimes& t : times)
    for (const double seconds :
         {t.forward_seconds, t.backward_seconds, t.reduce_seconds, t.step_seconds, t.send_activation_seconds,
          t.send_gradient_seconds, t.backward_weight_seconds})
      PW_CHECK(std::isfinite(seconds) && seconds >= 0, "a time of " << seconds << " seconds");
}

// The clocks of all ranks and links, driven by the dry run.
class Clocks {
 public:
  Clocks(const std::string& schedule, const PipelineShape& shape, const std::vector<StageTimes>& times,
         Span span)
      : shape_(shape), span_(span), times_(times), trains_(schedule_named(schedule).trains) {
    lists_ = schedule_of_all(schedule, shape, span);
    check_times(shape.replicas, times);
    placements_ = placements(shape);
    ranks_.resize(placements_.size());
  }

  /// Fills `actions`, unordered, if it is not null.
  void run(std::vector<SimulatedAction>* actions) {
    std::vector<double> arrival(MessageIndex(shape_, span_).count(), 0);
    completed_.assign(span_.count, 0);
    const auto record = [&](int64_t rank, const Action& action, double begin, double end) {
      if (actions) actions->push_back({rank, action, begin, end});
    };
    const auto ran = [&](int64_t rank, size_t position, size_t message) {
      const Action& action = lists_[rank][position];
      const int64_t stage = action.stage_or(placements_[rank].stage);
      const StageTimes& times = times_[stage];
      RankClock& clock = ranks_[rank];
      const double begin = clock.now;
      switch (action.kind) {
        case ActionKind::kForward:
          clock.now += times.forward_seconds;
          clock.peak_in_flight = std::max(clock.peak_in_flight, ++clock.in_flight);
          if (!trains_) {
            --clock.in_flight;
            if (stage + 1 == shape_.stages()) completed_[action.index - span_.first] = clock.now;
          }
          break;
        case ActionKind::kBackward:
        case ActionKind::kBackwardInput:
        case ActionKind::kBackwardWeight:
          clock.now += seconds_of(action.kind, times);
          if (action.kind == ActionKind::kBackwardInput) break;
          --clock.in_flight;
          if (stage == 0) completed_[action.index - span_.first] = clock.now;
          break;
        case ActionKind::kUpdate:
          clock.now += times.step_seconds;
          break;
        case ActionKind::kReceiveActivation:
        case ActionKind::kReceiveGradient:
          clock.now = std::max(clock.now, arrival[message]);
          clock.receive_wait += clock.now - begin;
          record(rank, action, begin, clock.now);
          return;
        case ActionKind::kSendActivation:
        case ActionKind::kSendGradient: {
          const bool gradient = action.kind == ActionKind::kSendGradient;
          double& link_free = gradient ? clock.gradients_free : clock.activations_free;
          const double start = std::max(clock.now, link_free);
          link_free = start + (gradient ? times.send_gradient_seconds : times.send_activation_seconds);
          arrival[message] = link_free;
          record(rank, action, start, link_free);
          return;
        }
        case ActionKind::kReduce:
          break;  // reduced() has it
      }
      clock.busy += clock.now - begin;
      record(rank, action, begin, clock.now);
    };
    const auto reduced = [&](int64_t first_rank, const Action& action) {
      const int64_t stage = action.stage_or(placements_[first_rank].stage);
      double last = 0;
      const int64_t end_rank = first_rank + shape_.replicas[stage];
      for (int64_t rank = first_rank; rank < end_rank; ++rank) last = std::max(last, ranks_[rank].now);
      for (int64_t rank = first_rank; rank < end_rank; ++rank) {
        RankClock& clock = ranks_[rank];
        const double end = last + times_[stage].reduce_seconds;
        clock.reduce += end - clock.now;
        clock.now = end;
        record(rank, action, last, end);
      }
    };
    const std::vector<size_t> position = dry_run(lists_, shape_, span_, ran, reduced);
    for (size_t rank = 0; rank < lists_.size(); ++rank)
      PW_CHECK(position[rank] == lists_[rank].size(), "deadlock at " << to_text(lists_[rank][position[rank]])
                                                                     << " of "
                                                                     << rank_label(rank, placements_[rank]));
  }

  double total_seconds() const {
    double total = 0;
    for (const RankClock& clock : ranks_)
      total = std::max({total, clock.now, clock.activations_free, clock.gradients_free});
    return total;
  }

  double steady_seconds() const {
    if (span_.count == 0) return 0;
    int64_t draining = 0;  // minibatches that stage 0 runs backward after its last forward
    if (trains_)
      for (int64_t replica = 0; replica < shape_.replicas[0]; ++replica)
        draining += ranks_[replica].peak_in_flight;
    const int64_t begin = span_.count / 2;
    const int64_t completions = std::max<int64_t>(0, span_.count - draining - begin);
    int64_t period = 1;
    for (int64_t stage = 0; stage < shape_.stages(); ++stage) {
      const StageTurns turns(shape_, stage);
      period = std::lcm(std::lcm(period, turns.cycle_length()), turns.round_length());
      if (period > span_.count) break;
    }
    int64_t apart = completions / 2 / period * period;
    if (apart == 0) apart = completions / 2;
    if (apart == 0) return total_seconds() / static_cast<double>(span_.count);
    double sum = 0;
    const int64_t pairs = completions - apart;
    for (int64_t i = begin; i < begin + pairs; ++i) sum += completed_[i + apart] - completed_[i];
    return sum / static_cast<double>(pairs * apart);
  }

  std::vector<SimulatedRank> ranks() const {
    std::vector<SimulatedRank> all;
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      all.push_back({placements_[rank], ranks_[rank].busy, ranks_[rank].receive_wait, ranks_[rank].reduce,
                     ranks_[rank].peak_in_flight});
    return all;
  }

  size_t action_count() const {
    return std::accumulate(lists_.begin(), lists_.end(), size_t{0},
                           [](size_t n, const auto& l) { return n + l.size(); });
  }

 private:
  static double seconds_of(ActionKind kind, const StageTimes& times) {
    const double weight = std::min(times.backward_weight_seconds, times.backward_seconds);
    return kind == ActionKind::kBackwardWeight  ? weight
           : kind == ActionKind::kBackwardInput ? times.backward_seconds - weight
                                                : times.backward_seconds;
  }

  struct RankClock {
    double now = 0;
    double activations_free = 0, gradients_free = 0;  // when the outgoing link is free
    double busy = 0, receive_wait = 0, reduce = 0;
    int64_t in_flight = 0, peak_in_flight = 0;
  };

  PipelineShape shape_;
  Span span_;
  std::vector<StageTimes> times_;
  bool trains_;
  RankLists lists_;
  std::vector<Placement> placements_;
  std::vector<RankClock> ranks_;
  std::vector<double> completed_;  // by minibatch of the span
};

}  // namespace

Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, Span span) {
  Clocks clocks(schedule, shape, times, span);
  Simulation simulation;
  simulation.actions.reserve(clocks.action_count());
  clocks.run(&simulation.actions);
  // The dry run visits each rank's actions in the order of its list, which the stable sort keeps among
  // equals.
  std::stable_sort(simulation.actions.begin(), simulation.actions.end(),
                   [](const SimulatedAction& a, const SimulatedAction& b) {
                     return a.begin_seconds != b.begin_seconds ? a.begin_seconds < b.begin_seconds
                                                               : a.rank < b.rank;
                   });
  simulation.total_seconds = clocks.total_seconds();
  simulation.steady_minibatch_seconds = clocks.steady_seconds();
  simulation.ranks = clocks.ranks();
  return simulation;
}

Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, int64_t minibatches) {
  return simulate(schedule, shape, times, Span{0, minibatches});
}

double steady_minibatch_seconds(const std::string& schedule, const PipelineShape& shape,
                                const std::vector<StageTimes>& times, Span span) {
  Clocks clocks(schedule, shape, times, span);
  clocks.run(nullptr);
  return clocks.steady_seconds();
}

double bottleneck_seconds(const std::vector<int64_t>& replicas, const std::vector<StageTimes>& times) {
  check_times(replicas, times);
  double slowest = 0;
  for (size_t stage = 0; stage < times.size(); ++stage) {
    const StageTimes& t = times[stage];
    double rank = t.forward_seconds + t.backward_seconds + t.step_seconds;
    if (replicas[stage] > 1) rank += t.reduce_seconds;
    const double link = std::max(stage + 1 < times.size() ? t.send_activation_seconds : 0.0,
                                 stage > 0 ? t.send_gradient_seconds : 0.0);
    slowest = std::max(slowest, std::max(rank, link) / static_cast<double>(replicas[stage]));
  }
  return slowest;
}

}  // namespace pipewright
