#include "runtime/schedule/deepening.h"

#include <algorithm>
#include <limits>
#include <map>

namespace pipewright {
namespace {

using Depths = std::vector<int64_t>;

constexpr double kTolerance = kDepthTolerance;

class Deepening {
 public:
  Deepening(const std::string& schedule, const PipelineShape& shape, const std::vector<StageTimes>& times,
            const SimulationOptions& options, DepthAim* aim)
      : schedule_(schedule),
        shape_(shape),
        times_(times),
        options_(options),
        most_(shape.in_flight),
        aim_(*aim) {}

  Depths run(const Depths& begin) {
    const double target =
        std::max(aim_.floor_seconds, bottleneck_seconds(shape_, times_, options_.blocking_transfers));
    best_ = begin;
    aim_.seconds = seconds(begin);
    const int64_t enough = compares() ? kFewInVain : kMostInVain;
    int64_t in_vain = 0;
    // The last stage holds nothing back; that it may run ahead helps only where replicas meet in bursts.
    for (int64_t more = 1; more <= kMostMore && in_vain < enough; more *= 2) {
      if (compares() && aim_.seconds > gains_at_most(more) * aim_.most_seconds) return best_;
      for (const bool last_too : {false, true}) {
        if (aim_.seconds <= kTolerance * target || aim_.simulated > kMostSimulated) break;
        Depths candidate = begin;
        for (size_t stage = 0; stage + (last_too ? 0 : 1) < candidate.size(); ++stage)
          candidate[stage] = std::min(most_[stage], candidate[stage] + more);
        in_vain = take_if_faster(usable(candidate)) ? 0 : in_vain + 1;
      }
    }
    if (best_ != begin && aim_.seconds <= aim_.most_seconds) take_back(begin);
    return best_;
  }

 private:
  static constexpr int64_t kMostMore = 16;
  static constexpr int64_t kMostInVain = 7;
  static constexpr int64_t kFewInVain = 4;           // where plans are only compared
  static constexpr int64_t kMostSimulated = 500000;  // then depths are good enough
  static constexpr double kRough = 1.03;             // what a short span says, but for so much

  /// What depths with so many more, or still more, are faster by, all but for one in fifty (measured on
  /// PipeDream's profiles).
  static double gains_at_most(int64_t more) { return more == 1 ? 1.25 : more == 2 ? 1.03 : 1; }

  bool take_if_faster(const Depths& candidate) {
    const double found = seconds(candidate);
    if (found * kTolerance > aim_.seconds) return false;
    best_ = candidate;
    aim_.seconds = found;
    return true;
  }

  /// What is not needed: back to what it was, if that costs nothing; otherwise half of the way.
  void take_back(const Depths& begin) {
    const double enough = aim_.seconds * kTolerance;
    for (size_t stage = 0; stage < best_.size(); ++stage) {
      for (int64_t over = best_[stage] - begin[stage]; over > 0; over /= 2) {
        Depths candidate = best_;
        candidate[stage] -= over;
        candidate = usable(candidate);
        const double found = seconds(candidate);
        if (found > enough) continue;
        best_ = candidate;
        aim_.seconds = found;
        break;
      }
    }
  }

  Depths usable(const Depths& depths) const {
    PipelineShape shape = shape_;
    shape.in_flight = depths;
    return usable_in_flight(shape);
  }
  double seconds(const Depths& depths) {
    const auto [known, added] = known_.try_emplace(depths, 0.0);
    if (added) known->second = simulated_seconds(depths);
    return known->second;
  }

  double simulated_seconds(const Depths& depths) {
    PipelineShape shape = shape_;
    shape.in_flight = depths;
    if (compares()) {
      const double rough = rough_minibatch_seconds(schedule_, shape, times_, options_, &aim_.simulated);
      if (rough > kRough * aim_.most_seconds) return rough;
    }
    return settled_minibatch_seconds(schedule_, shape, times_, options_, &aim_.simulated);
  }
  // With update intervals depth may slow a pipeline down: the gains measured say nothing there.
  bool compares() const {
    return aim_.most_seconds < std::numeric_limits<double>::infinity() &&
           shape_.weights == WeightRule::kStash;
  }

  std::string schedule_;
  PipelineShape shape_;
  std::vector<StageTimes> times_;
  SimulationOptions options_;
  Depths most_;
  DepthAim& aim_;
  Depths best_;
  std::map<Depths, double> known_;
};

}  // namespace

std::vector<int64_t> deepened(const std::string& schedule, const PipelineShape& shape,
                              const std::vector<StageTimes>& times, const SimulationOptions& options,
                              const std::vector<int64_t>& begin, DepthAim* aim) {
  return Deepening(schedule, shape, times, options, aim).run(begin);
}

}  // namespace pipewright
