// What a policy decides where the pipeline is empty: rank 0 asks it, the others hear of it before anything
// that lies behind is trained or written.
#include <cmath>
#include <map>

#include "graph/model_layers.h"
#include "runtime/train/change_text.h"
#include "runtime/train/training.h"

namespace pipewright {
namespace {

// Of all ranks: by stage the mean of its replicas, then over the stages that share a layer the root of the
// squares' sum.
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

}  // namespace

bool Training::decides_here() const {
  const auto every = policy_ ? policy_->decides_every() : std::nullopt;
  if (!every || done_ == data_.length().minibatches || generation_->number() + 1 < job_.generations())
    return false;
  return decision_due(done_, *every, generation_->length());
}

void Training::decide_drained() {
  if (!decides_here()) return;
  session_.rest();
  if (layer_norms_)
    control().post(GradientNorms{done_, generation_->worker().stage().stage(), layer_norms_->take()});
  if (!coordination_) {
    const std::string decided = awaited_decision();
    if (!decided.empty()) take_change(change_from(decided), done_);
    return;
  }
  const auto asked = coordination_->await_decision(
      {done_, generation_->plan().world_size, layer_norms_.has_value()}, [this] { control().check(); });
  if (!asked) return;
  const std::string decided = decision_of_policy(*asked);
  if (!decided.empty()) note_change(change_from(decided), done_);
  coordination_->decided(done_, decided);
  if (!decided.empty()) tell_change();
}

// Rank 0 may be spans ahead where its stage is frozen: what it has decided there waits.
std::string Training::awaited_decision() {
  control().await_orders(*session_.store(), session_.start_patience(),
                         [this] { return orders_->has_at_drain(); });
  const auto next = orders_->next_at_drain();
  const auto* decided = std::get_if<DrainDecided>(&*next);
  PW_CHECK(decided && decided->minibatch == done_,
           "rank 0 decides elsewhere than before minibatch " << done_);
  return decided->change;
}

// Rank 0: the change as text, "" for none.
std::string Training::decision_of_policy(const AskPolicy& asked) {
  DrainedNow now{done_,
                 generation_->plan(),
                 session_.place().world_size,
                 job_.learning_rate_scale_of(generation_->number()),
                 data_.length().minibatches - done_,
                 data_.length().minibatches_per_epoch,
                 {},
                 {}};
  const int64_t every = policy_->decides_every().value_or(0);
  const int64_t interval = every > 0 ? every : now.minibatches_per_epoch;
  now.norms_are_whole = data_.first_minibatch() <= done_ - interval;
  if (cache_ && cache_->can_keep()) now.cache = cache_rules(job_.run.cache);
  now.samples = data_.dataset().size();
  for (const ModelLayer& layer : model_layers(job_.model.graph)) now.layers.push_back(layer.name);
  if (layer_norms_) now.gradient_norms = gathered_norms(asked.norms, now.layers.size());
  try {
    auto decision = policy_->decide_drained(now);
    if (!decision) return "";
    PlannedChange change = settled_change(job_, std::move(*decision));
    change.minibatch = done_;
    return text_of(change);
  } catch (const Error& error) {
    const std::string remedy = error.remedy().empty() ? "" : "\n  " + error.remedy();
    std::fprintf(stderr, "adapt: refused, training goes on as before: %s%s\n", error.what(), remedy.c_str());
    return "";
  }
}

}  // namespace pipewright
