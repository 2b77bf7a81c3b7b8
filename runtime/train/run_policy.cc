#include "runtime/train/run_policy.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "graph/error.h"
#include "graph/model_layers.h"
#include "runtime/train/change_text.h"

namespace pipewright {
namespace {

std::string refused(const Error& error, const char* what_then) {
  const std::string remedy = error.remedy().empty() ? "" : "\n  " + error.remedy();
  std::fprintf(stderr, "adapt: refused, training goes on %s: %s%s\n", what_then, error.what(),
               remedy.c_str());
  return "";
}

}  // namespace

std::vector<double> gathered_norms(const std::vector<GradientNorms>& told, size_t layers) {
  std::map<int64_t, std::vector<const std::vector<double>*>> by_stage;
  for (const GradientNorms& of_rank : told) by_stage[of_rank.stage].push_back(&of_rank.norms);
  std::vector<double> squares(layers);
  for (const auto& [stage, replicas] : by_stage) {
    for (size_t l = 0; l < layers; ++l) {
      double sum = 0;
      for (const auto* norms : replicas) sum += norms->at(l);
      const double mean = sum / static_cast<double>(replicas.size());
      squares[l] += mean * mean;
    }
  }
  for (double& square : squares) square = std::sqrt(square);
  return squares;
}

RunPolicy::RunPolicy(const Job& job, const TrainingData& data, MeasuredSpeeds& measured)
    : job_(job), data_(data), measured_(measured), policy_(make_adapt_policy(job.run.adapt)) {
  if (policy_->reads_cores()) core_reader_ = core_reader_of(job.device);
  if (policy_->reads_gradients()) layer_norms_.emplace(job.model.graph);
}

std::string RunPolicy::decide_on_the_way(int64_t minibatch, const Plan& plan) {
  RunNow now{minibatch,
             plan,
             job_.plan,
             measured_.ranks.last(),
             data_.length().minibatches - minibatch,
             data_.length().minibatches_per_epoch,
             measured_.links.slow(),
             {}};
  if (policy_->reads_cores()) now.cores = measured_.cores.take_all();
  try {
    auto decision = policy_->decide(now);
    return decision ? text_of(settled_change(job_, std::move(*decision))) : "";
  } catch (const Error& error) {
    return refused(error, "under the plan in force");
  }
}

std::string RunPolicy::decide_drained(const AskPolicy& asked, int64_t generation, int64_t ranks,
                                      std::optional<CacheRules> cache_rules) {
  const int64_t minibatch = asked.minibatch;
  DrainedNow now{minibatch,
                 job_.plan_of(generation),
                 ranks,
                 job_.learning_rate_scale_of(generation),
                 data_.length().minibatches - minibatch,
                 data_.length().minibatches_per_epoch,
                 {},
                 {}};
  const int64_t every = policy_->decides_every().value_or(0);
  const int64_t interval = every > 0 ? every : now.minibatches_per_epoch;
  now.norms_are_whole = data_.first_minibatch() <= minibatch - interval;
  now.cache = std::move(cache_rules);
  now.samples = data_.dataset().size();
  for (const ModelLayer& layer : model_layers(job_.model.graph)) now.layers.push_back(layer.name);
  if (layer_norms_) now.gradient_norms = gathered_norms(asked.norms, now.layers.size());
  try {
    auto decision = policy_->decide_drained(now);
    if (!decision) return "";
    PlannedChange change = settled_change(job_, std::move(*decision));
    change.minibatch = minibatch;
    return text_of(change);
  } catch (const Error& error) {
    return refused(error, "as before");
  }
}

}  // namespace pipewright
