// The policy `interference`: when ranks become slow, or fast again, training goes on under the plan that is
// best for them as they are now, if that gains more than changing costs.
#pragma once

#include <chrono>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile.h"
#include "graph/topology.h"
#include "interference/predictor.h"
#include "optimizer/plan/replan.h"
#include "runtime/job/adapt.h"
#include "runtime/job/predicted_speeds.h"

namespace pipewright {

/// Seconds that a change is taken to cost: the ranks agree, the pipeline drains and fills again at
/// `minibatch_seconds` each, state moves.
double change_seconds(const Plan& in_force, double move_seconds, double minibatch_seconds);

/// A way to plan again: a value of the option `decide`.
struct ReplannerRow {
  const char* name;
  /// Slowdowns by rank; slow links.
  Replanned (*plan)(const Profile&, const Topology&, const Plan& in_force, const Slowdowns& slowdowns,
                    const SlowLinks& links, const std::vector<Plan>& known, double budget_seconds,
                    int64_t most_minibatches_per_update);
  bool predicts = false;  ///< slowdowns are a forest's (predicted_speeds.h), not what was measured
};
/// "measured", "naive", "predict".
const std::vector<ReplannerRow>& replanners();

/// Plans in a thread of its own, once for every new set of slowdowns of ranks and links; asked before each
/// minibatch it says nothing until the answer is there. Says on standard error what it found, also when it
/// stays with the plan in force.
class Interference : public AdaptPolicy {
 public:
  /// `predictor`: where the replanner predicts. `keeps_updates`: no stage makes an update of more minibatches
  /// than the run's first plan does at the most, whatever that would save: that is another training.
  Interference(Profile profile, std::optional<Topology> topology, double bandwidth_bytes_per_second,
               bool at_epochs, int64_t most_an_hour = kMostAnHour,
               const ReplannerRow& replanner = replanners().front(),
               std::optional<Predictor> predictor = std::nullopt, bool keeps_updates = true)
      : replanner_(replanner),
        profile_(std::move(profile)),
        topology_(std::move(topology)),
        bandwidth_bytes_per_second_(bandwidth_bytes_per_second),
        at_epochs_(at_epochs),
        most_an_hour_(most_an_hour),
        keeps_updates_(keeps_updates) {
    if (predictor) predicted_.emplace(std::move(*predictor), profile_);
  }
  static constexpr int64_t kMostAnHour = 20;
  bool decides() const override { return true; }
  bool reads_cores() const override { return predicted_.has_value(); }
  double work_seconds(const Plan& plan, int64_t rank) const override;
  std::optional<PlanDecision> decide(const RunNow& now) override;

  /// A change waits until staying has cost so much of what changing costs: what is short is over by then, and
  /// what lasts has cost little more (the rule for who hires skis and does not know for how many days).
  static constexpr double kPatience = 0.5;

 private:
  /// What a plan is made for.
  struct Event {
    Slowdowns slowdowns;
    SlowLinks links;
    bool operator==(const Event&) const = default;
    bool is_quiet() const;
  };
  Event event_of(const RunNow& now);
  SlowLinks priced(const RunNow& now);
  bool waits(const RunNow& now, double each_seconds, double cost_seconds);
  std::optional<PlanDecision> judge(const RunNow& now);
  Topology topology_for(int64_t ranks) const;

  const ReplannerRow replanner_;
  const Profile profile_;
  const std::optional<Topology> topology_;
  const double bandwidth_bytes_per_second_;
  const bool at_epochs_;
  const int64_t most_an_hour_;
  const bool keeps_updates_;
  std::deque<std::chrono::steady_clock::time_point> changes_;  // of the last hour
  std::optional<PredictedSpeeds> predicted_;
  std::vector<std::pair<LinkChange, SlowLink>>
      told_;                      // slow links, priced by the plan that they were seen under
  std::optional<Event> handled_;  // that a plan was made for
  int64_t began_ = 0;             // about the first minibatch of that
  bool has_told_waiting_ = false;
  std::future<Replanned> planning_;
  std::optional<Replanned> found_;
};

/// "interference:profile=FILE" and its other options. InputError.
std::unique_ptr<AdaptPolicy> interference(SpecOptions& options);

}  // namespace pipewright
