#include "runtime/serial/serial_pipeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "graph/error.h"
#include "models/definition/frozen.h"
#include "runtime/serial/serial_gradients.h"
#include "runtime/serial/serial_pass.h"
#include "runtime/stage/not_finite_error.h"
#include "runtime/stage/partition.h"
#include "runtime/stage/stage_learning_rate.h"

namespace pipewright {

SerialPipeline::SerialPipeline(const Model& model, const Plan& plan, const TrainingRules& rules,
                               int64_t index, int64_t count)
    : plan_(plan),
      rules_(rules),
      index_(index),
      count_(count),
      differentiable_(differentiable_values(model.graph)),
      split_(model, plan),
      loss_shares_(model, plan, rules.loss_average, rules.gradient_accumulation) {
  const auto interfaces = partition(model.graph, plan);
  const auto weight_rule = weight_rule_of(plan, rules.gradient_accumulation);
  for (size_t s = 0; s < plan.stages.size(); ++s)
    stages_.emplace_back(model, interfaces[s], plan, s, weight_rule[s], rules);
  for (SerialStage& stage : stages_) stage.frozen_buffers = frozen_buffers(model.graph, plan.frozen_layers);
}

void SerialPipeline::restore(const std::function<std::optional<StageState>(size_t)>& start) {
  for (size_t s = 0; s < stages_.size(); ++s)
    if (const auto state = start(s)) stages_[s].restore(*state);
}

SerialPipeline::Carried SerialPipeline::carried() const {
  Carried carried;
  for (const SerialStage& stage : stages_) {
    for (size_t i = 0; i < stage.segment.parameters().size(); ++i)
      carried.tensors.emplace(stage.segment.parameters()[i], stage.latest()[i]);
    for (size_t b = 0; b < stage.segment.buffers().size(); ++b)
      carried.tensors.emplace(stage.segment.buffers()[b], stage.buffers[0][b]);
    for (size_t i = 0; i < stage.trainable.size(); ++i)
      carried.optimizer.emplace(stage.trainable_name(i), stage.rules[i]->state());
  }
  return carried;
}

void SerialPipeline::go_on_from(const Carried& carried) {
  for (SerialStage& stage : stages_) {
    StageState state;
    for (const std::string& name : stage.segment.parameters())
      state.weights.push_back(carried.tensors.at(name));
    for (const std::string& name : stage.segment.buffers()) state.buffers.push_back(carried.tensors.at(name));
    stage.restore(state);
    for (size_t i = 0; i < stage.trainable.size(); ++i) {
      UpdateState remembered = carried.optimizer.at(stage.trainable_name(i));
      for (auto& [name, slots] : remembered.slots)
        for (at::Tensor& slot : slots) slot = slot.clone();
      stage.rules[i]->restore(std::move(remembered));
    }
  }
}

void SerialPipeline::begin(Span span, const std::vector<int64_t>* handed_out, std::optional<int64_t> began) {
  int64_t first = 0;
  minibatches_.clear();
  if (handed_out) {
    minibatches_ = *handed_out;
    first = minibatches_.empty() ? 0 : minibatches_.front() % stages_[0].rule.round_length;
  } else {
    for (int64_t k = span.first; k < span.end(); ++k)
      if (k % count_ == index_) minibatches_.push_back(k);
    first = (span.first + count_ - 1 - index_) / count_;
  }
  labels_.clear();
  span_ = {first, static_cast<int64_t>(minibatches_.size())};
  for (SerialStage& stage : stages_) {
    stage.begin(first, span_.end(), began.value_or(first), [this, &stage](int64_t k) {
      return learning_rate(stage, round_begin(stage, k), /*delay=*/0);
    });
  }
}

bool SerialPipeline::can_train(int64_t k) const {
  return std::all_of(stages_.begin(), stages_.end(), [&](const SerialStage& stage) {
    return stage.version_of(k) <= stage.latest_version() - (stage.awaits_group ? 1 : 0);
  });
}

LossFields SerialPipeline::of_loss(const MinibatchFields& fields) const {
  LossFields tensors = fields;
  const SerialStage& last = stages_.back();
  for (const std::string& name : loss_shares_.tables()) {
    for (size_t i = 0; i < last.segment.parameters().size(); ++i)
      if (last.segment.parameters()[i] == name) tensors[name] = last.latest()[i].detach();
    for (size_t b = 0; b < last.segment.buffers().size(); ++b)
      if (last.segment.buffers()[b] == name) tensors[name] = last.buffers[0][b];
  }
  return tensors;
}

void SerialPipeline::count_labels(int64_t k, const std::function<const MinibatchFields&(int64_t)>& fields) {
  const int64_t length = stages_.back().rule.round_length;
  const int64_t round = k / length;
  if (!loss_shares_.by_labels() || labels_.count(round) > 0) return;
  for (int64_t j = std::max(round * length, span_.first); j < std::min((round + 1) * length, span_.end());
       ++j)
    labels_[round] += loss_shares_.count(of_loss(fields(in_run(j))));
}

std::optional<double> SerialPipeline::train(int64_t k, const std::function<MinibatchFields()>& fields_of,
                                            const SerialPerform& perform) {
  for (SerialStage& stage : stages_) stage.forget_before(k);
  SerialPass pass(stages_, differentiable_, split_, k);
  const int64_t length = stages_.back().rule.round_length;
  const int64_t begin = std::max(k / length * length, span_.first);
  const int64_t end = std::min((k / length + 1) * length, span_.end());
  MinibatchFields fields;
  const auto weight_of = [&](SampleRange part) -> SerialPass::LossWeight {
    const bool whole = part.size() == stages_.back().samples;
    if (whole && !loss_shares_.by_labels()) return {};
    const LossFields minibatch = of_loss(fields);
    const double share = loss_shares_.share(minibatch, part);
    if (!loss_shares_.by_labels()) return {share, share};
    const double count = loss_shares_.count(minibatch, part);
    const double gradient = static_cast<double>(end - begin) * (count / labels_.at(k / length));
    return {gradient == 0 ? 0 : share, gradient};
  };
  double loss = 0;
  const bool begins = perform(ActionKind::kForward, in_run(k), [&] {
    fields = fields_of();
    loss = pass.forward(fields, {rules_.random_seed(), in_run(k)}, weight_of);
  });
  if (!begins) return std::nullopt;
  if (rules_.nan_guard && !std::isfinite(loss)) {
    const std::string text = std::isnan(loss) ? "nan" : loss > 0 ? "inf" : "-inf";
    throw NotFiniteError("the loss of minibatch " + std::to_string(in_run(k)) + " is " + text,
                         kDivergedRemedy, in_run(k), in_run(k));
  }
  perform(ActionKind::kBackward, in_run(k), [&] {
    pass.backward();
    end_rounds(k);
  });
  return loss;
}

// What the stages whose round ends with minibatch k update with becomes due.
void SerialPipeline::end_rounds(int64_t k) {
  const at::NoGradGuard no_grad;
  std::vector<size_t> ended;
  for (size_t s = 0; s < stages_.size(); ++s) {
    SerialStage& stage = stages_[s];
    if ((k + 1) % stage.rule.round_length != 0 && k + 1 != span_.end()) continue;
    ended.push_back(s);
    stage.end_round(round_begin(stage, k), k + 1);
  }
  add_tied_gradients(stages_, ended, plan_.tied_parameters);
  if (rules_.gradient_clipping_norm > 0) {
    if (const auto norm = clip_gradients(stages_, ended, plan_, rules_.gradient_clipping_norm))
      gradient_norms_[in_run(k) + 1] = *norm;
  }
  for (const size_t s : ended)
    stages_[s].due.push_back({round_begin(stages_[s], k), k + 1, std::exchange(stages_[s].gradient, {})});
}

// Of the round that minibatch k is in, its first one of the span.
int64_t SerialPipeline::round_begin(const SerialStage& stage, int64_t k) const {
  return std::max(span_.first, k / stage.rule.round_length * stage.rule.round_length);
}

double SerialPipeline::learning_rate_of(int64_t k) const {
  const SerialStage& stage = stages_.back();
  const int64_t begin = round_begin(stage, k);
  return learning_rate(stage, begin, stage.version_behind(begin, 0) - stage.version_of(begin));
}

bool SerialPipeline::update(size_t s) {
  SerialStage& stage = stages_[s];
  if (stage.due.empty() || stage.awaits_group) return false;
  const at::NoGradGuard no_grad;
  const SerialStage::Due due = std::move(stage.due.front());
  stage.due.pop_front();
  const int64_t delay = stage.latest_version() - stage.version_of(due.begin);
  stage.update(due.gradient, learning_rate(stage, due.begin, delay), delay, due.end);
  if (const auto broken = rules_.nan_guard ? stage.not_finite() : std::nullopt) {
    const int64_t first = in_run(due.begin), last = in_run(due.end - 1);
    throw NotFiniteError("the gradient of '" + stage.trainable_name(*broken) + "' in minibatches " +
                             std::to_string(first) + " to " + std::to_string(last) +
                             " is not finite on stage " + std::to_string(s),
                         kDivergedRemedy, first, last);
  }
  return true;
}

// Of the round that begins with minibatch `begin`, whose gradients are `delay` updates old.
double SerialPipeline::learning_rate(const SerialStage& stage, int64_t begin, int64_t delay) const {
  double rate = learning_rate_at(learning_rate_settings(rules_), in_run(begin));
  if (rules_.learning_rate_scaling == "pipedream")
    rate *= static_cast<double>(stage.rule.round_length) / static_cast<double>(stages_[0].rule.round_length);
  if (rules_.optimizer.delay_correction == "pipemare-t1" && delay > 1) {
    const int64_t warmup = rules_.learning_rate_policy.warmup_minibatches;
    const int64_t annealing = warmup > 0 ? 5 * warmup : std::max<int64_t>(1, rules_.total_minibatches / 4);
    const double annealed = static_cast<double>(in_run(begin)) / static_cast<double>(annealing);
    if (annealed < 1) rate *= std::pow(static_cast<double>(delay), annealed - 1);
  }
  return rate;
}

bool SerialPipeline::has_due() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const SerialStage& stage) { return !stage.due.empty(); });
}

bool SerialPipeline::is_done() const {
  return std::all_of(stages_.begin(), stages_.end(),
                     [](const SerialStage& stage) { return stage.due.empty() && !stage.awaits_group; });
}

void SerialPipeline::end() {
  const at::NoGradGuard no_grad;
  for (SerialStage& stage : stages_) stage.average_buffers();
}

std::map<int64_t, double> SerialPipeline::take_gradient_norms() { return std::exchange(gradient_norms_, {}); }

ReferenceResult SerialPipeline::result() const {
  ReferenceResult result;
  for (const auto& [name, state] : carried().optimizer)
    for (const auto& [slot, tensors] : state.slots) result.slots[slot][name] = tensors[0];
  for (const SerialStage& stage : stages_) {
    const auto& names = stage.segment.parameters();
    for (size_t i = 0; i < names.size(); ++i) {
      const at::Tensor weight = stage.latest()[i].detach();
      const auto [place, fresh] = result.weights.emplace(names[i], weight);
      PW_CHECK(fresh || place->second.equal(weight), "copies of '" << names[i] << "' differ");
    }
    result.buffers.emplace_back();
    for (const Tensors& replica : stage.buffers) {
      result.buffers.back().emplace_back();
      for (size_t b = 0; b < replica.size(); ++b)
        result.buffers.back().back()[stage.segment.buffers()[b]] = replica[b];
    }
  }
  return result;
}

}  // namespace pipewright
