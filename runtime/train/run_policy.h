// The policy of a run (--adapt) that decides on the way, and what it is told: rank 0 asks it, the other ranks
// know when it decides.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/coordinator/coordinator.h"
#include "runtime/generation/training_data.h"
#include "runtime/job/job.h"
#include "runtime/monitor/core_sample.h"
#include "runtime/monitor/link_speeds.h"
#include "runtime/monitor/rank_speeds.h"
#include "runtime/train/layer_norms.h"
#include "runtime/train/observers.h"

namespace pipewright {

/// By layer, of what all ranks of a plan have told: of a stage the mean of its replicas, then over the stages
/// that share a layer the root of the squares' sum.
std::vector<double> gathered_norms(const std::vector<GradientNorms>& told, size_t layers);

/// What has been measured, on rank 0; also without a policy. Any thread.
struct MeasuredSpeeds {
  explicit MeasuredSpeeds(int64_t ranks) : ranks(ranks), cores(ranks) {}
  RankSpeeds ranks;
  LinkSpeeds links;
  CoreSamples cores;
};

/// The thread that trains.
class RunPolicy {
 public:
  /// Of a job that decides (Job::decides); borrows all.
  RunPolicy(const Job& job, const TrainingData& data, MeasuredSpeeds& measured);

  /// As AdaptPolicy has it, of this job's.
  std::optional<int64_t> decides_every() const { return policy_->decides_every(); }
  double work_seconds(const Plan& plan, int64_t rank) const { return policy_->work_seconds(plan, rank); }
  /// What the policy reads of this rank; null where it reads none of it.
  LayerNorms* layer_norms() { return layer_norms_ ? &*layer_norms_ : nullptr; }
  /// Whether a rank tells of its core, which it may be unable to read (CoreObserver).
  bool reads_cores() const { return policy_->reads_cores(); }
  const CoreReader* core_reader() const { return core_reader_.get(); }

  // Rank 0: a change as text (change_text.h); "": none. What the policy cannot decide is said on standard
  // error, and is none.
  /// Before a minibatch begins under a plan.
  std::string decide_on_the_way(int64_t minibatch, const Plan& plan);
  /// Where the pipeline is empty. `cache_rules`: DrainedNow::cache.
  std::string decide_drained(const AskPolicy& asked, int64_t generation, int64_t ranks,
                             std::optional<CacheRules> cache_rules);

 private:
  const Job& job_;
  const TrainingData& data_;
  MeasuredSpeeds& measured_;
  const std::unique_ptr<AdaptPolicy> policy_;
  std::unique_ptr<const CoreReader> core_reader_;  // if there is something to read
  std::optional<LayerNorms> layer_norms_;
};

}  // namespace pipewright
