// The policy `interference`: when ranks become slow, or fast again, training goes on under the plan that is
// best for them as they are now, if that gains more than changing costs.
#pragma once

#include <chrono>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/plan/replan.h"
#include "runtime/job/adapt.h"

namespace pipewright {

/// Seconds that a change is taken to cost: the ranks agree, the pipeline drains and fills again at
/// `minibatch_seconds` each, state moves.
double change_seconds(const Plan& in_force, double move_seconds, double minibatch_seconds);

/// A way to plan again: a value of the option `decide`.
struct ReplannerRow {
  const char* name;
  Replanned (*plan)(const Profile&, const Topology&, const Plan& in_force,
                    const std::vector<double>& slowdowns);
};
/// "measured", "naive".
const std::vector<ReplannerRow>& replanners();

/// Plans in a thread of its own, once for every new set of slowdowns; asked before each minibatch it says
/// nothing until the answer is there. Says on standard error what it found, also when it stays with the plan
/// in force.
class Interference : public AdaptPolicy {
 public:
  Interference(Profile profile, std::optional<Topology> topology, double bandwidth_bytes_per_second,
               bool at_epochs, int64_t most_an_hour = kMostAnHour,
               const ReplannerRow& replanner = replanners().front())
      : replanner_(replanner),
        profile_(std::move(profile)),
        topology_(std::move(topology)),
        bandwidth_bytes_per_second_(bandwidth_bytes_per_second),
        at_epochs_(at_epochs),
        most_an_hour_(most_an_hour) {}
  static constexpr int64_t kMostAnHour = 20;
  bool decides() const override { return true; }
  std::optional<PlanDecision> decide(const RunNow& now) override;

 private:
  std::optional<PlanDecision> judge(const RunNow& now);
  Topology topology_for(int64_t ranks) const;

  const ReplannerRow replanner_;
  const Profile profile_;
  const std::optional<Topology> topology_;
  const double bandwidth_bytes_per_second_;
  const bool at_epochs_;
  const int64_t most_an_hour_;
  std::deque<std::chrono::steady_clock::time_point> changes_;  // of the last hour
  std::vector<double> handled_;  // slowdowns that a plan was made for; empty: none yet
  std::future<Replanned> planning_;
  std::optional<Replanned> found_;
};

/// "interference:profile=FILE" and its other options. InputError.
std::unique_ptr<AdaptPolicy> interference(SpecOptions& options);

}  // namespace pipewright
