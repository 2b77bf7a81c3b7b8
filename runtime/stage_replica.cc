#include "runtime/stage_replica.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "models/initialise.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {
namespace {

StageProgramOptions options_of(const Plan& plan, int64_t stage) {
  StageProgramOptions options;
  options.recompute = plan.stages[static_cast<size_t>(stage)].recompute;
  options.split_backward = plan.schedule == "zb-h1";
  return options;
}

}  // namespace

StageReplica::StageReplica(const Model& model, const Plan& plan, int64_t stage, int64_t replica,
                           const TrainingRules& rules)
    : stage_(stage),
      replica_(replica),
      schedule_(plan.schedule),
      shape_(shape_of(plan, rules.gradient_accumulation)),
      turns_(shape_, stage),
      rules_(rules),
      program_(model.graph, partition(model.graph, plan), static_cast<size_t>(stage),
               options_of(plan, stage)) {
  if (rules.learning_rate_scaling == "pipedream") {
    rate_factor_ = static_cast<double>(turns_.round_length()) /
                   static_cast<double>(StageTurns(shape_, 0).round_length());
  }
  std::vector<at::Tensor> weights;
  for (const std::string& name : program_.parameters())
    weights.push_back(initial_parameter(model, name, rules.seed));
  for (const size_t i : program_.trainable()) weights[i].requires_grad_(true);
  versions_ = std::make_unique<WeightVersions>(std::move(weights));
  for (const std::string& name : program_.buffers()) buffers_.push_back(initial_buffer(model, name));
  update_rule_ = make_update_rule(rules.optimizer);
}

StageState StageReplica::state() const {
  return {versions_->updates(), weights(), buffers_, update_rule_->state()};
}

void StageReplica::restore(StageState state) {
  PW_CHECK_EQ(state.weights.size(), program_.parameters().size());
  PW_CHECK_EQ(state.buffers.size(), program_.buffers().size());
  for (const size_t i : program_.trainable()) state.weights[i].requires_grad_(true);
  versions_ = std::make_unique<WeightVersions>(std::move(state.weights), state.updates);
  buffers_ = std::move(state.buffers);
  update_rule_->restore(std::move(state.optimizer));
}

void StageReplica::begin(Span span) {
  PW_CHECK(in_flight_.empty() && round_gradients_.empty(), "a span begins while another one runs");
  span_ = span;
  first_version_ = versions_->updates();
  rule_ = std::make_unique<ReadVersions>(schedule_, shape_, stage_, span);
  // Versions are kept for the forwards that will read them, and no longer.
  std::map<int64_t, int64_t> readers;
  for (const int64_t k : minibatches(span)) ++readers[first_version_ + rule_->of(k)];
  versions_->expect(std::move(readers));
}

StageReplica::Forwarded StageReplica::forward(int64_t k, std::vector<at::Tensor> received,
                                              std::vector<at::Tensor> fields) {
  Pass pass = program_.forward(std::move(received), std::move(fields),
                               versions_->read(first_version_ + rule_->of(k)), buffers_, {rules_.seed, k});
  Forwarded result{std::exchange(pass.sent, {}), pass.loss, std::exchange(pass.scores, {})};
  const auto [place, fresh] = in_flight_.emplace(k, std::move(pass));
  PW_CHECK(fresh, "minibatch " << k << " is in flight already");
  peak_in_flight_ = std::max(peak_in_flight_, static_cast<int64_t>(in_flight_.size()));
  return result;
}

Pass StageReplica::take_pass(int64_t k) {
  auto pass = in_flight_.extract(k);
  PW_CHECK(!pass.empty(), "backward of minibatch " << k << " without its forward");
  return std::move(pass.mapped());
}

std::vector<at::Tensor> StageReplica::backward(int64_t k, std::vector<at::Tensor> sent_gradients) {
  StageGradients gradients = program_.backward(take_pass(k), std::move(sent_gradients));
  add_gradients(std::move(gradients.weights));
  return std::move(gradients.received);
}

std::vector<at::Tensor> StageReplica::backward_input(int64_t k, std::vector<at::Tensor> sent_gradients) {
  const auto pass = in_flight_.find(k);
  PW_CHECK(pass != in_flight_.end(), "backward of minibatch " << k << " without its forward");
  return program_.backward_input(pass->second, std::move(sent_gradients));
}

void StageReplica::backward_weight(int64_t k) { add_gradients(program_.backward_weight(take_pass(k))); }

void StageReplica::add_gradients(std::vector<at::Tensor> gradients) {
  const at::NoGradGuard no_grad;
  if (round_gradients_.empty()) {
    round_gradients_ = std::move(gradients);
    for (at::Tensor& gradient : round_gradients_) {
      // What autograd hands out may be shared, with a message under way for instance, or be spread out from
      // fewer elements. Ours can be written to.
      const bool shared = gradient.use_count() > 1 || gradient.storage().use_count() > 1;
      if (shared || !gradient.is_contiguous()) gradient = gradient.clone(at::MemoryFormat::Contiguous);
    }
    return;
  }
  for (size_t i = 0; i < gradients.size(); ++i) round_gradients_[i].add_(gradients[i]);
}

std::vector<at::Tensor>& StageReplica::round_gradients() {
  if (round_gradients_.empty()) {
    for (const size_t i : program_.trainable())
      round_gradients_.push_back(at::zeros_like(weights()[i].detach()));
  }
  return round_gradients_;
}

void StageReplica::average(int64_t round) {
  const int64_t minibatches = turns_.round_size(round, span_);
  if (minibatches == 1) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : round_gradients()) gradient.div_(static_cast<double>(minibatches));
}

void StageReplica::update(int64_t round) {
  const double rate =
      rate_factor_ * learning_rate_at(rules_.learning_rate_policy, rules_.optimizer.learning_rate,
                                      turns_.round_begin(round, span_), rules_.minibatches_per_epoch,
                                      rules_.total_minibatches);
  std::vector<at::Tensor> room = versions_->room(program_.trainable());
  std::vector<at::Tensor> next = weights();
  std::vector<at::Tensor> trained;
  for (const size_t i : program_.trainable()) trained.push_back(next[i]);
  std::vector<at::Tensor> stepped = update_rule_->step(trained, round_gradients(), rate, std::move(room));
  round_gradients_.clear();
  for (size_t i = 0; i < stepped.size(); ++i) next[program_.trainable()[i]] = std::move(stepped[i]);
  versions_->publish(std::move(next));
}

StageReplica::Forwarded StageReplica::evaluate(const StageProgram& program, int64_t k,
                                               std::vector<at::Tensor> received,
                                               std::vector<at::Tensor> fields) const {
  Pass pass = program.forward(std::move(received), std::move(fields), versions_->latest(), buffers_,
                              {rules_.seed, k});
  return {std::move(pass.sent), std::move(pass.loss), std::move(pass.scores)};
}

}  // namespace pipewright
