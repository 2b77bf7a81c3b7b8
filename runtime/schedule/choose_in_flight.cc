#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "graph/error.h"
#include "runtime/schedule/cycle_time.h"
#include "runtime/schedule/deepening.h"
#include "runtime/schedule/one_for_all.h"
#include "runtime/schedule/simulate.h"
#include "runtime/schedule/timeline.h"

namespace pipewright {
namespace {

using Depths = std::vector<int64_t>;

// Below this a deeper candidate is not faster.
constexpr double kSame = 1.001;

// Where plenty of depth takes so much more than is of use, no depths are of use.
constexpr double kHopeless = 1.25;

Depths in_use(const PipelineShape& shape, const Depths& depths) {
  PipelineShape used = shape;
  used.in_flight = depths;
  return usable_in_flight(used);
}

/// What depths may take where others take `seconds`.
double enough_seconds(double seconds, double target) {
  return kDepthTolerance * (seconds <= kDepthTolerance * target ? target : seconds);
}

// Finds depths by simulating the schedule with candidates: no closed rule is known that is both small and
// never starves, and deeper is not always faster, because a rank runs its warm-up forwards whether or not
// backwards are due.
class Search {
 public:
  /// `brief`: spans are those that comparing plans has the time for.
  Search(const std::string& schedule, const PipelineShape& shape, const std::vector<StageTimes>& times,
         const SimulationOptions& options, bool brief, int64_t most_simulated)
      : schedule_(schedule),
        shape_(shape),
        times_(times),
        options_(options),
        most_simulated_(most_simulated),
        most_(shape.in_flight) {
    const double bottleneck = bottleneck_seconds(shape, times, options.blocking_transfers);
    for (int64_t stage = 0; stage < shape.stages(); ++stage) {
      turns_.emplace_back(shape, stage);
      most_ahead_.push_back(turns_.back().run_ahead(most_[static_cast<size_t>(stage)]));
      period_ =
          std::min(std::lcm(period_, turns_.back().cycle_length()), brief ? kBriefPeriod : kLongestPeriod);
    }
    // What a stage may run ahead of the next one: what a minibatch takes there and back, in units of the time
    // per minibatch, and twice the ranks on both sides, because replicas that meet in a reduce work in
    // bursts.
    for (size_t stage = 0; stage < times.size(); ++stage) {
      const StageTimes& t = times[stage];
      double slowest = 0;
      for (int64_t q = 0; q < turns_[stage].replicas(); ++q)
        slowest = std::max(slowest, t.of(q).minibatch_seconds() + t.of(q).step_seconds);
      double latency = slowest + t.reduce_seconds;
      int64_t ranks = turns_[stage].longest_turn();
      if (stage + 1 < times.size()) {
        latency += t.send_activation_seconds + times[stage + 1].send_gradient_seconds;
        ranks += turns_[stage + 1].longest_turn();
      }
      plenty_.push_back((bottleneck > 0 ? static_cast<int64_t>(std::ceil(latency / bottleneck)) : 0) +
                        2 * ranks);
    }
    if (!shape.tied.empty()) period_ = std::max(period_, shape.microbatches);
    if (!facts_of(shape.weights).drains()) {
      target_ = bottleneck;
      return;
    }
    // Filling and draining cost what they cost.
    period_ = std::max(period_, shape.microbatches);
    Depths plenty = most_, straight = pipedream_in_flight(shape.replicas);
    for (size_t stage = 0; stage < plenty.size(); ++stage) {
      plenty[stage] = std::min(plenty[stage], shape.microbatches);
      straight[stage] = std::min(straight[stage], most_[stage]);
    }
    target_ = std::min(seconds(plenty), seconds(straight));
  }

  /// What depths are asked to reach.
  double target() const { return target_; }

  /// Depths for spans `longer` times as long as the shortest sensible; `seconds` is what they take.
  /// Ends early, with what it has by then, where depths take more than `hopeless`.
  Depths run(int64_t longer, double& seconds, bool lowered, double hopeless) {
    longer_ = longer;
    known_.clear();
    Depths depths = most_;
    for (auto stage = turns_.size(); stage-- > static_cast<size_t>(shape_.frozen_stages);) {
      seconds = choose(depths, stage, hopeless);
      if (seconds > hopeless) return usable(depths);
      if (is_over()) break;
    }
    depths = usable(depths);
    if (lowered && !is_over()) lower(depths);
    seconds = this->seconds(depths);
    return depths;
  }

  /// With room for everything: hardly any depths are faster. Where that is more than `enough`, some number
  /// above it.
  double roomy_seconds(double enough) {
    double least = std::numeric_limits<double>::infinity();
    Depths depths = most_;
    // Where earlier stages have little room, a last stage that runs ahead starves.
    for (const int64_t last : {depth(depths.size() - 1, plenty_.back()), int64_t{1}}) {
      depths.back() = last;
      give_plenty(depths, depths.size() - 1);
      least = std::min(least, seconds(depths, enough));
      if (least <= enough) break;
    }
    return least;
  }

  /// Simulated seconds per minibatch; where that is more than `enough`, some number above it.
  double seconds(const Depths& depths, double enough = std::numeric_limits<double>::infinity()) {
    PipelineShape shape = shape_;
    shape.in_flight = usable(depths);
    const auto [known, added] = known_.try_emplace(shape.in_flight, Known{});
    if (!added && (known->second.exact || known->second.seconds > enough)) return known->second.seconds;
    if (const std::optional<double> endless = endless_seconds(shape, enough)) {
      known->second = {*endless, *endless <= enough, true};
      return *endless;
    }
    // The second half holds the drain and several periods.
    const auto first = static_cast<size_t>(shape.frozen_stages);
    const Span span{0, 2 * longer_ *
                           (turns_[first].run_ahead(shape.in_flight[first]) + turns_[first].cycle_length() +
                            std::max<int64_t>(64, 4 * period_))};
    known->second = {steady_minibatch_seconds(schedule_, shape, times_, span, options_), true, false};
    simulated_ += span.count * shape.stages() / kSweepsForEvents;
    return known->second.seconds;
  }

  /// Minibatches times stages so far.
  int64_t simulated() const { return simulated_ + endless_.simulated(); }

  bool is_over() const { return simulated() >= most_simulated_; }

  /// The same in the long run.
  double far_seconds(const Depths& depths) {
    const auto known = known_.find(depths);
    if (known != known_.end() && known->second.exact && known->second.endless) return known->second.seconds;
    PipelineShape shape = shape_;
    shape.in_flight = depths;
    return settled_minibatch_seconds(schedule_, shape, times_, options_, &simulated_);
  }

 private:
  /// Exact and quick, where the pipeline never drains, links are not shared and the period is short.
  std::optional<double> endless_seconds(const PipelineShape& shape, double enough) {
    const bool plain =
        !shares_anything(shape_, options_) && options_.send_queue == 0 && !options_.blocking_transfers;
    if (!plain || facts_of(shape.weights).drains()) return std::nullopt;
    return endless_.minibatch_seconds(shape, times_, enough);
  }
  Depths usable(const Depths& depths) const { return in_use(shape_, depths); }
  int64_t ahead(const Depths& depths, size_t stage) const { return turns_[stage].run_ahead(depths[stage]); }
  /// The least depth of a stage that runs `minibatches` ahead, or its bound.
  int64_t depth(size_t stage, int64_t minibatches) const {
    int64_t depth = turns_[stage].depth_that_runs_ahead(minibatches, most_[stage]);
    while (depth > 1 && turns_[stage].run_ahead(depth - 1) >= minibatches) --depth;
    if (depth < most_[stage] && turns_[stage].run_ahead(depth) < minibatches) ++depth;
    return depth;
  }

  /// To all stages before `stage`. Where bounds leave less than plenty it is shared evenly: stages that run
  /// equally far ahead wait for each other's every minibatch. What any stage can run ahead binds all behind
  /// it.
  void give_plenty(Depths& depths, size_t stage) const {
    const auto first = static_cast<size_t>(shape_.frozen_stages);
    for (size_t before = stage; before-- > first;) {
      const int64_t next = ahead(depths, before + 1);
      int64_t evenly = plenty_[before];
      for (size_t earlier = first; earlier <= before; ++earlier)
        evenly = std::min(evenly, std::max<int64_t>(0, most_ahead_[earlier] - next) /
                                      static_cast<int64_t>(before - earlier + 1));
      depths[before] = depth(before, next + evenly);
    }
  }

  /// Depths after `stage` are chosen; takes the smallest for it that is enough while all stages before it
  /// have plenty. Where none is (the bounds are too low), the smallest of the fastest. Returns what it takes;
  /// where that is more than `hopeless`, some number above it.
  double choose(Depths& depths, size_t stage, double hopeless) {
    const int64_t next = stage + 1 < turns_.size() ? ahead(depths, stage + 1) : 0;
    const int64_t least = depth(stage, next), largest = depth(stage, next + plenty_[stage]);
    int64_t best = least;
    double fastest = std::numeric_limits<double>::infinity();
    for (int64_t candidate = least; candidate <= largest && fastest > kDepthTolerance * target_;
         ++candidate) {
      depths[stage] = candidate;
      give_plenty(depths, stage);
      const double candidate_seconds = seconds(depths, std::min(fastest / kSame, hopeless));
      if (candidate_seconds * kSame < fastest) {
        fastest = candidate_seconds;
        best = candidate;
      }
    }
    depths[stage] = best;
    return fastest;
  }

  /// A stage may need less now that those before it hold it back.
  void lower(Depths& depths) {
    const double enough = enough_seconds(seconds(depths), target_);
    for (bool lowered = true; lowered;) {
      lowered = false;
      for (size_t stage = 0; stage < turns_.size(); ++stage)
        for (; depths[stage] > 1; lowered = true) {
          Depths candidate = depths;
          --candidate[stage];
          candidate = usable(candidate);
          if (seconds(candidate, enough) > enough) break;
          depths = candidate;
        }
    }
  }

  static constexpr int64_t kLongestPeriod = 256;
  static constexpr int64_t kBriefPeriod = 32;
  static constexpr int64_t kSweepsForEvents = 4;  // as much quicker are simulations without a network
  std::string schedule_;
  PipelineShape shape_;
  std::vector<StageTimes> times_;
  SimulationOptions options_;
  const int64_t most_simulated_;
  Depths most_;
  std::vector<StageTurns> turns_;
  Depths most_ahead_;  // minibatches that a stage may run ahead of the last
  double target_ = 0;
  int64_t period_ = 1;
  Depths plenty_;
  int64_t longer_ = 1;
  int64_t simulated_ = 0;
  struct Known {
    double seconds = 0;
    bool exact = false;    // or it is more
    bool endless = false;  // it holds in the long run
  };
  std::map<Depths, Known> known_;
  EndlessPace endless_;
};

/// As if nothing were shared. `begin`: the depths are there to begin with, and need not be small.
Depths search(const std::string& schedule, const PipelineShape& shape, const std::vector<StageTimes>& times,
              const SimulationOptions& options, bool begin, DepthAim* aim) {
  // With update intervals depth may slow a pipeline down: what holds with stash says nothing there.
  const bool brief = aim->most_seconds < std::numeric_limits<double>::infinity();
  const bool compares = brief && shape.weights == WeightRule::kStash;
  Search search(schedule, shape, times, options, brief, aim->most_simulated);
  Depths depths = shape.in_flight;
  if (compares) aim->seconds = search.roomy_seconds(kHopeless * aim->most_seconds);
  if (compares && aim->seconds > kHopeless * aim->most_seconds) {
    aim->simulated += search.simulated();
    return in_use(shape, depths);
  }
  const double hopeless =
      compares || !brief ? std::numeric_limits<double>::infinity() : kHopeless * aim->most_seconds;
  // What was buffered while the pipeline filled can hide for long that a depth is too small. So the result
  // has to hold on a much longer span; if it does not, the search is repeated with spans that show more.
  for (const int64_t longer : {1, 4, 16}) {
    depths = search.run(longer, aim->seconds, !(begin && brief), hopeless);
    if (brief && aim->seconds > (compares ? 1 : kHopeless) * aim->most_seconds) break;
    if (facts_of(shape.weights).drains()) break;  // nothing is buffered over an update
    if (search.is_over()) break;
    const double enough = enough_seconds(aim->seconds, search.target()) * (1 + 1e-9);
    aim->seconds = search.far_seconds(depths);
    if (aim->seconds <= enough) break;
  }
  aim->simulated += search.simulated();
  return depths;
}

/// The same, looked up where that is possible.
Depths known_or_searched(const std::string& schedule, const PipelineShape& shape,
                         const std::vector<StageTimes>& times, const SimulationOptions& options,
                         DepthAim* aim) {
  PipelineShape asked = shape;
  asked.rank_numbers.clear();
  if (aim->known != nullptr) {
    if (const auto* known = aim->known->find(asked, times, aim->most_seconds)) {
      aim->seconds = known->seconds;
      return known->depths;
    }
  }
  const Depths depths = search(schedule, shape, times, options, true, aim);
  if (aim->known != nullptr)
    aim->known->keep(asked, times,
                     {depths, aim->seconds, aim->most_seconds, aim->seconds <= aim->most_seconds});
  return depths;
}

Depths hold_as_the_first(const PipelineShape& shape) {
  int64_t hold = 0;
  for (int64_t stage = shape.frozen_stages + 1; stage < shape.stages(); ++stage)
    hold += StageTurns(shape, stage).longest_turn();
  Depths depths;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    const StageTurns turns(shape, stage);
    depths.push_back(1);
    while (shape.trains(stage) && depths.back() < shape.in_flight[stage] &&
           turns.run_ahead(depths.back()) < hold)
      ++depths.back();
  }
  return depths;
}

}  // namespace

const KnownDepths::Chosen* KnownDepths::find(const PipelineShape& shape, const std::vector<StageTimes>& times,
                                             double most_seconds) const {
  const auto at = chosen_.find({shape, times});
  if (at == chosen_.end()) return nullptr;
  const Chosen& known = at->second;
  const bool compares = most_seconds < std::numeric_limits<double>::infinity();
  if (compares != (known.most_seconds < std::numeric_limits<double>::infinity())) return nullptr;
  // What was given up is given up all the sooner for a lower aim. What went to its end within an aim may be
  // given up for a lower one, and is better known.
  return known.ended || most_seconds <= known.most_seconds ? &known : nullptr;
}

void KnownDepths::keep(const PipelineShape& shape, const std::vector<StageTimes>& times, Chosen chosen) {
  chosen_[{shape, times}] = std::move(chosen);
}

std::vector<int64_t> choose_in_flight(const std::string& schedule, const PipelineShape& shape,
                                      const std::vector<StageTimes>& times, const SimulationOptions& options,
                                      DepthAim* aim) {
  DepthAim none;
  if (aim == nullptr) aim = &none;
  const ScheduleRow& row = schedule_named(schedule);
  check_shape(shape);
  if (shape.any_splits()) {
    const OneForAll one = one_for_all(shape, times);
    return choose_in_flight(schedule, one.shape, one.times, on_own_links(options), aim);
  }
  PipelineShape bounded = shape;
  for (int64_t stage = 0; stage < shape.frozen_stages; ++stage) bounded.in_flight[stage] = 1;
  if (row.depth != DepthChoice::kSearched) {
    if (row.depth == DepthChoice::kAsTheFirst) bounded.in_flight = hold_as_the_first(shape);
    bounded.in_flight = row.depths(bounded);
    if (aim != &none)
      aim->seconds =
          settled_minibatch_seconds(schedule, bounded, times, options, &aim->simulated, aim->most_seconds);
    return bounded.in_flight;
  }
  if (facts_of(shape.weights).lag == WeightLag::kInterval) {
    int64_t& depth = bounded.in_flight[shape.frozen_stages];
    depth = StageTurns(shape, shape.frozen_stages).depth_that_runs_ahead(shape.microbatches, depth);
  }
  if (!shares_anything(shape, options)) return search(schedule, bounded, times, options, false, aim);
  SimulationOptions alone = options;
  alone.cores = {};
  alone.network.clear();
  alone.messages.clear();
  alone.devices.clear();
  DepthAim unshared;
  unshared.most_seconds = aim->most_seconds;  // what is too slow with its links to itself is so on a network
  unshared.known = aim->known;
  unshared.most_simulated = aim->most_simulated;
  const Depths depths = known_or_searched(schedule, bounded, times, alone, &unshared);
  aim->simulated += unshared.simulated;
  return deepened(schedule, bounded, times, options, depths, aim);
}

std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times,
                                      const std::vector<int64_t>& most) {
  return choose_in_flight("1f1b", {replicas, most}, times);
}

std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times) {
  return choose_in_flight(replicas, times, Depths(replicas.size(), std::numeric_limits<int64_t>::max()));
}

}  // namespace pipewright
