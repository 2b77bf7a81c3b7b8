// Profile + topology -> plan.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "graph/error.h"
#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/device_classes.h"
#include "optimizer/search/constraints.h"

namespace pipewright {

struct PlanRequest {
  std::string strategy = "best";  ///< of searched_strategies(), graph/strategies.h
  int64_t optimizer_slots = 1;    ///< tensors the update rule keeps per parameter: SGD 0, momentum 1, Adam 2
  std::string optimizer = {};     ///< that of the run; "": not known
  std::string delay_correction = "none";  ///< that of the run
  bool use_all_devices = false;           ///< otherwise fewest devices is the second aim
  StageConstraints constraints;           ///< of strategies other than "dp", and not with all devices
  double effort = 1;  ///< how much of the time that planning may take for simulating candidates
  /// With less than all of the effort: plans to begin with in place of a search. Borrowed.
  const std::vector<Plan>* known = nullptr;
  /// What takes longer is of no interest: the search may end with an InfeasibleError where nothing is faster.
  double most_seconds = std::numeric_limits<double>::infinity();
  /// Above 0: a plan for inference, forward only, of least latency with a minibatch every so often. Schedule,
  /// constraints and strategy are then not asked.
  double inference_period_seconds = 0;
  std::string schedule = "1f1b";  ///< strategy "model-parallel" has its own
  std::string weights;            ///< "": "flush" for schedules that drain, otherwise "stash"
  /// With weight rules by which each stage updates by itself: no stage makes an update of more minibatches,
  /// so has no more replicas; 0: any.
  int64_t most_minibatches_per_update = 0;
  int64_t microbatches = 0;           ///< of an update, with flush and 2bw; 0: a few for each device
  int64_t stages_per_rank = 2;        ///< schedules with several: "interleaved", 2 of "zbv", "dualpipev"
  std::string recompute = "auto";     ///< of recompute_choices(), optimizer/cost/recompute.h
  ClassProfiles class_profiles = {};  ///< of the classes that the topology names
  bool ignore_crowd = false;          ///< whatever the profile has measured beside others (ProfiledCrowd)
  SlowLinks slow_links = {};
  int64_t data_workers = 0;  ///< Run::data_workers; in prices of plans for GPUs
};

/// cost_inputs() as the request asks.
CostInputs requested_cost_inputs(const Profile& profile, const Topology& topology,
                                 const PlanRequest& request);

/// What the search says of itself, beside the plan.
struct PlanNotes {
  int64_t cuts = 0;   ///< places where the model can be cut, both ends included
  bool exact = true;  ///< false: too many cuts, only the most promising were searched
  /// Smallest of the family by the formula alone, without waiting; within a memory limit on several levels
  /// and with many cuts only that of a plan near it.
  double period_seconds = 0;
  std::string family = {};  ///< of what plans the lower bound speaks: "plan of schedule 1f1b with ..."
  bool capped = false;      ///< there were more plans to simulate than planning takes time for
};

/// There would be a plan if the devices had more memory.
class MemoryError : public InfeasibleError {
 public:
  MemoryError(const std::string& message, const std::string& remedy, int64_t needed_bytes = 0)
      : InfeasibleError(message, remedy), needed_bytes_(needed_bytes) {}
  /// Of each device; 0: not known.
  int64_t needed_bytes() const { return needed_bytes_; }

 private:
  int64_t needed_bytes_;
};

/// Best plan of the strategy, with in-flight depths chosen by simulation, `predicted`
/// filled, ranks 0.. in stage order. Deterministic: equal inputs give equal bytes. MemoryError says which
/// limit binds and what would fit, InfeasibleError what else there is no plan for; InputError for an unknown
/// strategy, or a topology this search does not take. `notes` may be null.
Plan make_plan(const Profile& profile, const Topology& topology, const PlanRequest& request,
               PlanNotes* notes = nullptr);

/// Fills `predicted` of a plan by direct sums over its nodes (no search tables): the independent second
/// opinion. PlanError if the plan does not cover the profile's nodes, lets a value flow backwards, separates
/// tied parameters, needs more devices than there are or does not finish under its schedule. The strategy of
/// the request is not looked at.
Prediction evaluate_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                         const PlanRequest& request);

}  // namespace pipewright
