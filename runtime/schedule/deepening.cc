#include "runtime/schedule/deepening.h"

#include <algorithm>
#include <limits>
#include <map>

namespace pipewright {
namespace {

using Depths = std::vector<int64_t>;

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
    aim_.seconds = seconds(begin, compares() ? aim_.most_seconds : kNever);
    if (compares() && aim_.seconds > aim_.most_seconds) {
      if (aim_.seconds > kGainsAtMost * aim_.most_seconds) return best_;
      const double most = aim_.most_seconds;  // beyond it how much more it is does not matter
      take_if_faster(usable(deeper(begin, kTogether, 1)), most);
      if (aim_.seconds > most && aim_.seconds < kStairsGain * most)
        take_if_faster(usable(deeper(begin, kStairs, 1)), most);
      if (aim_.seconds > most && aim_.seconds < kMoreGains * most)
        take_if_faster(usable(deeper(begin, kTogether, 2)), most);
      if (aim_.seconds > aim_.most_seconds) return best_;
    }
    int64_t in_vain = 0;
    for (int64_t more = 1; more <= kMostMore && in_vain < most_in_vain(); more *= 2) {
      for (const Way way : {kTogether, kStairs, kLastToo, kFirst}) {
        if (aim_.seconds <= kDepthTolerance * target || aim_.simulated > most_simulated()) break;
        in_vain = take_if_faster(usable(deeper(begin, way, more))) ? 0 : in_vain + 1;
      }
    }
    if (best_ != begin && !compares()) take_back(begin);
    return best_;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr int64_t kMostMore = 16;

  /// Which stages have so many more in flight: all but the last, which holds nothing back; each stage so many
  /// more than the next one, for links that stages crowd in turn; the last too, which helps only where
  /// replicas meet in bursts; the first alone.
  enum Way { kTogether, kStairs, kLastToo, kFirst };

  Depths deeper(const Depths& begin, Way way, int64_t more) const {
    Depths depths = begin;
    const size_t last = begin.size() - 1, first = static_cast<size_t>(shape_.frozen_stages);
    for (size_t stage = 0; stage <= last; ++stage) {
      int64_t added = more;
      if (way == kStairs) added *= static_cast<int64_t>(last - stage);
      if ((way == kTogether && stage == last) || (way == kFirst && stage > first)) added = 0;
      depths[stage] = std::min(most_[stage], depths[stage] + added);
    }
    return depths;
  }

  /// Of these, one after the other; two steps further where it is not only to compare plans.
  int64_t most_in_vain() const { return compares() ? 8 : 12; }
  /// Then depths are good enough.
  int64_t most_simulated() const { return compares() ? 8000 : 200000; }

  // What is slower than is of use: of 700 such (PipeDream's profiles on levels) ten came down to it by one
  // more in flight, seven together, three in stairs, and nearly all with less to gain than this.
  static constexpr double kGainsAtMost = 1.25;
  static constexpr double kStairsGain = 1.12;
  static constexpr double kMoreGains = 1.03;

  bool take_if_faster(const Depths& candidate, double most = kNever) {
    const double found = seconds(candidate, std::min(most, aim_.seconds / kDepthTolerance));
    if (found * kDepthTolerance > aim_.seconds) return false;
    best_ = candidate;
    aim_.seconds = found;
    return true;
  }

  /// What is not needed: back to what it was, if that costs nothing; otherwise half of the way.
  void take_back(const Depths& begin) {
    const double enough = aim_.seconds * kDepthTolerance;
    for (size_t stage = 0; stage < best_.size(); ++stage) {
      for (int64_t over = best_[stage] - begin[stage]; over > 0; over /= 2) {
        Depths candidate = best_;
        candidate[stage] -= over;
        candidate = usable(candidate);
        const double found = seconds(candidate, enough);
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
  /// Or some number above `most`, where it is more.
  double seconds(const Depths& depths, double most) {
    Known& known = known_[depths];
    if (known.seconds > 0 && (known.seconds <= known.most || known.most >= most)) return known.seconds;
    PipelineShape shape = shape_;
    shape.in_flight = depths;
    known = {settled_minibatch_seconds(schedule_, shape, times_, options_, &aim_.simulated, most), most};
    return known.seconds;
  }
  bool compares() const { return aim_.most_seconds < kNever; }

  std::string schedule_;
  PipelineShape shape_;
  std::vector<StageTimes> times_;
  SimulationOptions options_;
  Depths most_;
  DepthAim& aim_;
  Depths best_;
  struct Known {
    double seconds = 0, most = 0;  // or it is more than that
  };
  std::map<Depths, Known> known_;
};

}  // namespace

std::vector<int64_t> deepened(const std::string& schedule, const PipelineShape& shape,
                              const std::vector<StageTimes>& times, const SimulationOptions& options,
                              const std::vector<int64_t>& begin, DepthAim* aim) {
  return Deepening(schedule, shape, times, options, aim).run(begin);
}

}  // namespace pipewright
