#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "graph/error.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

using Depths = std::vector<int64_t>;

// Finds depths by simulating 1f1b with candidates: no closed rule is known that is both small and never
// starves, and deeper is not always faster, because a rank runs its warm-up forwards whether or not backwards
// are due.
class Search {
 public:
  Search(const Depths& replicas, const std::vector<StageTimes>& times) : replicas_(replicas), times_(times) {
    for (const int64_t r : replicas) period_ = std::min<int64_t>(std::lcm(period_, r), kLongestPeriod);
  }

  double seconds(const Depths& depths) {
    const PipelineShape shape{replicas_, usable_in_flight({replicas_, depths})};
    const auto [known, added] = known_.try_emplace(shape.in_flight, 0.0);
    if (added) {
      const int64_t in_flight = shape.in_flight[0] * replicas_[0];
      // Its second half holds the drain and several periods.
      const Span span{0, 2 * (in_flight + std::max<int64_t>(64, 4 * period_))};
      known->second = steady_minibatch_seconds("1f1b", shape, times_, span);
    }
    return known->second;
  }

  /// Depths that no larger ones beat, as far as bounds allow: what a minibatch takes from a stage to the end
  /// and back, in units of the time per minibatch, and twice the ranks on the way for the bursts in which
  /// replicas work.
  Depths generous(const Depths& most) const {
    Depths depths(replicas_.size());
    const double bottleneck = bottleneck_seconds(replicas_, times_);
    double latency = 0;
    int64_t ranks = 0;
    for (size_t stage = replicas_.size(); stage-- > 0;) {
      const StageTimes& t = times_[stage];
      latency += t.forward_seconds + t.backward_seconds + t.reduce_seconds + t.step_seconds;
      if (stage + 1 < replicas_.size())
        latency += t.send_activation_seconds + times_[stage + 1].send_gradient_seconds;
      ranks += replicas_[stage];
      const double minibatches =
          (bottleneck > 0 ? latency / bottleneck : 0) + 2.0 * static_cast<double>(ranks);
      depths[stage] = std::min(most[stage], 2 + static_cast<int64_t>(minibatches) / replicas_[stage]);
    }
    return usable_in_flight({replicas_, depths});
  }

 private:
  static constexpr int64_t kLongestPeriod = 256;
  Depths replicas_;
  std::vector<StageTimes> times_;
  int64_t period_ = 1;
  std::map<Depths, double> known_;
};

}  // namespace

std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times,
                                      const std::vector<int64_t>& most) {
  constexpr double kTolerance = 1.001;
  check_shape({replicas, most});
  Search search(replicas, times);
  const double bottleneck = bottleneck_seconds(replicas, times);

  // From the last stage to the first: the smallest depth that is enough while all stages before it have
  // plenty; where none is (the bounds are too low), the smallest of the fastest.
  Depths depths = search.generous(most);
  for (size_t stage = replicas.size(); stage-- > 0;) {
    const int64_t plenty = depths[stage];
    int64_t least = 1;
    if (stage + 1 < replicas.size()) {
      const int64_t ahead = (depths[stage + 1] - 1) * replicas[stage + 1];
      least = std::min(plenty, 1 + (ahead + replicas[stage] - 1) / replicas[stage]);
    }
    int64_t best = least;
    double fastest = std::numeric_limits<double>::infinity();
    for (int64_t depth = least; depth <= plenty && fastest > kTolerance * bottleneck; ++depth) {
      depths[stage] = depth;
      const double seconds = search.seconds(depths);
      if (seconds * kTolerance < fastest) {
        fastest = seconds;
        best = depth;
      }
    }
    depths[stage] = best;
  }
  depths = usable_in_flight({replicas, depths});

  // A stage may need less now that those before it hold it back.
  const double enough = kTolerance * std::max(bottleneck, search.seconds(depths));
  for (bool lowered = true; lowered;) {
    lowered = false;
    for (size_t stage = 0; stage < replicas.size(); ++stage)
      for (; depths[stage] > 1; lowered = true) {
        Depths lower = depths;
        --lower[stage];
        lower = usable_in_flight({replicas, lower});
        if (search.seconds(lower) > enough) break;
        depths = lower;
      }
  }
  return depths;
}

std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times) {
  return choose_in_flight(replicas, times, Depths(replicas.size(), std::numeric_limits<int64_t>::max()));
}

}  // namespace pipewright
