#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "graph/error.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

using Depths = std::vector<int64_t>;

// A percent of time is within what a profile is off by; the depth that the last percent takes costs memory
// and older weights.
constexpr double kTolerance = 1.01;
// Below this a deeper candidate is not faster.
constexpr double kSame = 1.001;

/// What depths may take where others take `seconds`.
double enough_seconds(double seconds, double bottleneck) {
  return kTolerance * (seconds <= kTolerance * bottleneck ? bottleneck : seconds);
}

// Finds depths by simulating 1f1b with candidates: no closed rule is known that is both small and never
// starves, and deeper is not always faster, because a rank runs its warm-up forwards whether or not backwards
// are due.
class Search {
 public:
  Search(const Depths& replicas, const std::vector<StageTimes>& times, const Depths& most)
      : replicas_(replicas), times_(times), most_(most), bottleneck_(bottleneck_seconds(replicas, times)) {
    for (const int64_t r : replicas) period_ = std::min<int64_t>(std::lcm(period_, r), kLongestPeriod);
    // What a stage may run ahead of the next one: what a minibatch takes there and back, in units of the time
    // per minibatch, and twice the ranks on both sides, because replicas that meet in a reduce work in
    // bursts.
    for (size_t stage = 0; stage < replicas.size(); ++stage) {
      const StageTimes& t = times[stage];
      double latency = t.forward_seconds + t.backward_seconds + t.reduce_seconds + t.step_seconds;
      int64_t ranks = replicas[stage];
      if (stage + 1 < replicas.size()) {
        latency += t.send_activation_seconds + times[stage + 1].send_gradient_seconds;
        ranks += replicas[stage + 1];
      }
      plenty_.push_back((bottleneck_ > 0 ? static_cast<int64_t>(std::ceil(latency / bottleneck_)) : 0) +
                        2 * ranks);
    }
  }

  /// Depths for spans `longer` times as long as the shortest sensible; `seconds` is what they take.
  Depths run(int64_t longer, double& seconds) {
    longer_ = longer;
    known_.clear();
    Depths depths = most_;
    for (size_t stage = replicas_.size(); stage-- > 0;) choose(depths, stage);
    depths = usable_in_flight({replicas_, depths});
    lower(depths);
    seconds = this->seconds(depths);
    return depths;
  }

  /// Simulated seconds per minibatch.
  double seconds(const Depths& depths) {
    const PipelineShape shape{replicas_, usable_in_flight({replicas_, depths})};
    const auto [known, added] = known_.try_emplace(shape.in_flight, 0.0);
    if (added) {
      // The second half holds the drain and several periods.
      const int64_t in_flight = shape.in_flight[0] * replicas_[0];
      const Span span{0, 2 * longer_ * (in_flight + std::max<int64_t>(64, 4 * period_))};
      known->second = steady_minibatch_seconds("1f1b", shape, times_, span);
    }
    return known->second;
  }

 private:
  int64_t ahead(const Depths& depths, size_t stage) const { return (depths[stage] - 1) * replicas_[stage]; }
  /// The depth of a stage that runs `minibatches` ahead, or its bound.
  int64_t depth(size_t stage, int64_t minibatches) const {
    return std::min(most_[stage], 1 + (minibatches + replicas_[stage] - 1) / replicas_[stage]);
  }

  /// Depths after `stage` are chosen; takes the smallest for it that is enough while all stages before it
  /// have plenty. Where none is (the bounds are too low), the smallest of the fastest.
  void choose(Depths& depths, size_t stage) {
    const int64_t next = stage + 1 < replicas_.size() ? ahead(depths, stage + 1) : 0;
    const int64_t least = depth(stage, next), largest = depth(stage, next + plenty_[stage]);
    int64_t best = least;
    double fastest = std::numeric_limits<double>::infinity();
    for (int64_t candidate = least; candidate <= largest && fastest > kTolerance * bottleneck_; ++candidate) {
      depths[stage] = candidate;
      for (size_t before = stage; before-- > 0;)
        depths[before] = depth(before, ahead(depths, before + 1) + plenty_[before]);
      const double candidate_seconds = seconds(depths);
      if (candidate_seconds * kSame < fastest) {
        fastest = candidate_seconds;
        best = candidate;
      }
    }
    depths[stage] = best;
  }

  /// A stage may need less now that those before it hold it back.
  void lower(Depths& depths) {
    const double enough = enough_seconds(seconds(depths), bottleneck_);
    for (bool lowered = true; lowered;) {
      lowered = false;
      for (size_t stage = 0; stage < replicas_.size(); ++stage)
        for (; depths[stage] > 1; lowered = true) {
          Depths candidate = depths;
          --candidate[stage];
          candidate = usable_in_flight({replicas_, candidate});
          if (seconds(candidate) > enough) break;
          depths = candidate;
        }
    }
  }

  static constexpr int64_t kLongestPeriod = 256;
  Depths replicas_;
  std::vector<StageTimes> times_;
  Depths most_;
  double bottleneck_;
  int64_t period_ = 1;
  Depths plenty_;
  int64_t longer_ = 1;
  std::map<Depths, double> known_;
};

}  // namespace

std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times,
                                      const std::vector<int64_t>& most) {
  check_shape({replicas, most});
  Search search(replicas, times, most);
  // What was buffered while the pipeline filled can hide for long that a depth is too small. So the result
  // has to hold on a much longer span; if it does not, the search is repeated with spans that show more.
  Depths depths;
  const double bottleneck = bottleneck_seconds(replicas, times);
  for (const int64_t longer : {1, 4, 16}) {
    double seconds = 0;
    depths = search.run(longer, seconds);
    const double enough = enough_seconds(seconds, bottleneck);
    const Span far{0, 8 * longer * (depths[0] * replicas[0] + 256)};
    if (steady_minibatch_seconds("1f1b", {replicas, depths}, times, far) <= enough * (1 + 1e-9)) break;
  }
  return depths;
}

std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times) {
  return choose_in_flight(replicas, times, Depths(replicas.size(), std::numeric_limits<int64_t>::max()));
}

}  // namespace pipewright
