// What a policy decides where the pipeline is empty: rank 0 asks it, the others hear of it before anything
// that lies behind is trained or written.
#include <cmath>

#include "graph/model_layers.h"
#include "runtime/train/change_text.h"
#include "runtime/train/training.h"

namespace pipewright {
namespace {

// In the store: what was decided before a minibatch, "-" for no change, and how many ranks have heard of it.
std::string decided_key(int64_t minibatch) { return "adapt/decided/" + std::to_string(minibatch); }
std::string heard_key(int64_t minibatch) { return "adapt/heard/" + std::to_string(minibatch); }
// The change that began a generation, for ranks that had no part in the one before.
std::string change_key(int64_t generation) { return "adapt/change/" + std::to_string(generation); }
std::string norms_key(int64_t minibatch, int64_t rank) {
  return "adapt/norms/" + std::to_string(minibatch) + "/" + std::to_string(rank);
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
  const bool first = session_.place().rank == 0;
  Store* store = session_.store();
  if (layer_norms_) {
    Json norms;
    norms["stage"] = generation_->worker().stage().stage();
    norms["norms"] = layer_norms_->take();
    if (first) own_norms_ = norms.dump();
    if (store && !first) store->set(norms_key(done_, session_.place().rank), norms.dump());
  }
  std::string decided;
  if (first) {
    decided = decision_of_policy();
    if (store) {
      if (!decided.empty()) store->set(change_key(generation_->number() + 1), decided);
      if (generation_->plan().world_size > 1) store->set(decided_key(done_), decided.empty() ? "-" : decided);
    }
  } else {
    decided = store->get(decided_key(done_), session_.start_patience(), [this] { control().check(); });
    if (decided == "-") decided.clear();
    // The last to hear of it clears up: rank 0 may be spans ahead where its stage is frozen.
    if (store->add(heard_key(done_), 1) == generation_->plan().world_size - 1) {
      store->erase(decided_key(done_));
      store->erase(heard_key(done_));
    }
  }
  if (!decided.empty()) take_change(change_from(decided), done_);
}

// Rank 0: the change as text, "" for none.
std::string Training::decision_of_policy() {
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
  if (layer_norms_) now.gradient_norms = gathered_norms(now.layers.size());
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

// Of all ranks: by stage the mean of its replicas, then over the stages that share a layer the root of the
// squares' sum.
std::vector<double> Training::gathered_norms(size_t layers) {
  std::map<int64_t, std::vector<std::vector<double>>> by_stage;
  for (int64_t rank = 0; rank < generation_->plan().world_size; ++rank) {
    const std::string key = norms_key(done_, rank);
    std::string text = own_norms_;
    if (rank > 0) {
      text = session_.store()->get(key, session_.start_patience(), [this] { control().check(); });
      session_.store()->erase(key);
    }
    const Json norms = parse_json(text, "norms of a rank");
    by_stage[norms.at("stage").get<int64_t>()].push_back(norms.at("norms").get<std::vector<double>>());
  }
  std::vector<double> squares(layers);
  for (const auto& [stage, replicas] : by_stage) {
    for (size_t l = 0; l < layers; ++l) {
      double sum = 0;
      for (const auto& norms : replicas) sum += norms.at(l);
      const double mean = sum / static_cast<double>(replicas.size());
      squares[l] += mean * mean;
    }
  }
  for (double& square : squares) square = std::sqrt(square);
  return squares;
}

// A rank that had no part in generation `ended` hears how the next began.
void Training::hear_of_decisions(int64_t ended) {
  while (policy_ && job_.generations() <= ended + 1) {
    const auto text = session_.store()->try_get(change_key(job_.generations()));
    if (!text) return;
    PlannedChange change = change_from(*text);
    const int64_t minibatch = change.minibatch;
    take_change(std::move(change), minibatch);
  }
}

}  // namespace pipewright
