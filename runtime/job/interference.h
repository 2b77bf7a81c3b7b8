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
#include "runtime/job/adapt.h"

namespace pipewright {

/// What a plan takes with ranks as slow as they are, and what another one would.
struct Replanned {
  std::vector<double> slowdowns;  ///< by rank, for which it was asked
  double now_seconds = 0;         ///< a minibatch, of the plan in force
  double next_seconds = 0;        ///< of `plan`
  Plan plan;                      ///< the best there is, of the same schedule and weight rule, on all devices
  double move_seconds = 0;        ///< to bring it about: of the busiest rank
};

/// Plans again: the profile's times on devices that are so many times as slow. Ranks that are all equally
/// slow count as quiet. Takes as long as the optimizer; pure. `topology` has a device for each rank.
Replanned plan_again(const Profile& profile, Topology topology, const Plan& in_force,
                     std::vector<double> slowdowns);

/// Seconds that a change is taken to cost: the ranks agree, the pipeline drains and fills again, state moves.
double change_seconds(const Plan& in_force, const Replanned& again);

/// Plans in a thread of its own, once for every new set of slowdowns; asked before each minibatch it says
/// nothing until the answer is there. Says on standard error what it found, also when it stays with the plan
/// in force.
class Interference : public AdaptPolicy {
 public:
  Interference(Profile profile, std::optional<Topology> topology, double bandwidth_bytes_per_second,
               bool at_epochs, int64_t most_an_hour = kMostAnHour)
      : profile_(std::move(profile)),
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
