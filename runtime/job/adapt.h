// Which plan trains which minibatches of a run: the policies of --adapt.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/cache_rules.h"
#include "graph/plan.h"
#include "graph/spec.h"
#include "runtime/monitor/core_sample.h"
#include "runtime/monitor/link_judge.h"
#include "runtime/monitor/rank_monitor.h"

namespace pipewright {

/// Of links, where a policy is given a bandwidth and no topology.
inline constexpr double kUsualLatencySeconds = 20e-6;

/// A plan takes over from the one before it.
struct PlannedChange {
  int64_t minibatch = 0;  ///< the first that it trains, 1 or more
  std::string file;       ///< of the plan, for messages; "": the plan before goes on
  Plan plan;              ///< of a job that is prepared: with the layers that are frozen under it
  std::string reason;     ///< the policy's name, and why if it says so
  std::optional<int64_t> freeze = {};  ///< as PlanChange::freeze; and so the next two
  std::optional<int64_t> gradient_accumulation = {};
  std::optional<double> learning_rate_scale = {};
};
/// By rising minibatch. Plans stay where they are when further ones come.
using PlannedChanges = std::deque<PlannedChange>;

/// What a policy sees when it is asked.
struct RunNow {
  int64_t minibatch = 0;            ///< rank 0 is about to begin it
  const Plan& plan;                 ///< in force
  const Plan& first_plan;           ///< that the run began with
  std::vector<SpeedChange> speeds;  ///< measured, by rank: RankSpeeds::last()
  int64_t minibatches_left = 0;
  int64_t minibatches_per_epoch = 1;
  std::vector<LinkChange> slow_links = {};  ///< LinkSpeeds::slow()
  /// By rank, where reads_cores(): what has come since the policy was asked last, the oldest first.
  std::vector<std::vector<CoreSample>> cores = {};
};

/// Training is to go on under this plan as soon as the ranks can agree on where the pipeline drains.
struct PlanDecision {
  std::string file;  ///< of the plan, or what it is called in messages; "": the plan in force goes on
  Plan plan;
  std::string reason;                  ///< as PlannedChange::reason
  std::optional<int64_t> freeze = {};  ///< as PlanChange::freeze; and so the next two
  std::optional<int64_t> gradient_accumulation = {};
  std::optional<double> learning_rate_scale = {};
};

/// What a policy sees where the pipeline is empty: the epoch, or its interval of minibatches, has just ended.
struct DrainedNow {
  int64_t minibatch = 0;  ///< the next one
  const Plan& plan;       ///< in force
  int64_t ranks = 1;      ///< that were started
  double learning_rate_scale = 1;
  int64_t minibatches_left = 0;
  int64_t minibatches_per_epoch = 1;
  std::vector<std::string> layers;  ///< of the model: their names (graph/model_layers.h)
  /// By layer, where reads_gradients(): the norms of its gradient, summed over the updates since the last
  /// time. 0 of what is frozen.
  std::vector<double> gradient_norms;
  /// False where the run went on from a checkpoint within the interval: the norms are of a part of it.
  bool norms_are_whole = true;
  /// Where what frozen layers make is kept (--cache); nothing where it is not.
  std::optional<CacheRules> cache = {};
  int64_t samples = 0;  ///< of the data set
};

class AdaptPolicy {
 public:
  virtual ~AdaptPolicy() = default;
  /// What it knows beforehand: asked once on every rank, and in the launcher, when the job is prepared. The
  /// plans are read, not checked.
  virtual PlannedChanges known() { return {}; }
  /// Whether it decides on the way. Then as many ranks may be started as it may want.
  virtual bool decides() const { return false; }
  /// Whether it decides where the pipeline is empty: at the end of each epoch (0), or of every so many
  /// minibatches. Without a value it does not. The same on every rank.
  virtual std::optional<int64_t> decides_every() const { return std::nullopt; }
  virtual bool reads_gradients() const { return false; }
  /// Whether each rank is to tell some times a second what the host says of its core. The same on every rank.
  virtual bool reads_cores() const { return false; }
  /// What a minibatch of the rank's work under a plan takes, forward, backward and update, by what the policy
  /// knows of the model, on a device that is quiet; 0: it does not know. Of several plans it is the ratios
  /// that count.
  virtual double work_seconds(const Plan& plan, int64_t rank) const {
    static_cast<void>(plan), static_cast<void>(rank);
    return 0;
  }
  /// Rank 0, there, unless a change is known; the others wait. A decision takes effect at now.minibatch.
  virtual std::optional<PlanDecision> decide_drained(const DrainedNow& now) {
    static_cast<void>(now);
    return std::nullopt;
  }
  /// Rank 0, before each minibatch that it begins, unless a change is known or under way: whoever is slow
  /// here holds up the pipeline. A decision whose plan does not fit the run is refused with a message, and so
  /// is what is thrown as an Error; training goes on under the plan in force, and the policy is asked again.
  virtual std::optional<PlanDecision> decide(const RunNow& now) {
    static_cast<void>(now);
    return std::nullopt;
  }
};

struct AdaptPolicyRow {
  const char* name;
  std::unique_ptr<AdaptPolicy> (*make)(SpecOptions& options);
};
/// "none", "manual", "watch", "slow", "interference", "freeze".
const std::vector<AdaptPolicyRow>& adapt_policies();

/// The policy `adapt` (a SPEC, such as "manual:file=CHANGES.json"). InputError with the nearest name for an
/// unknown one, and for options that it does not have.
std::unique_ptr<AdaptPolicy> make_adapt_policy(const std::string& adapt);

/// What a file of changes says (graph/plan_changes.h), with the plans that it names. InputError.
PlannedChanges changes_of_file(const std::string& file, const std::string& reason);

}  // namespace pipewright
