#include "runtime/stage/stage_replica.h"

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "models/initialise.h"
#include "models/memory/memory_meter.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/update/gradient_norm.h"

namespace pipewright {
namespace {

StageProgramOptions options_of(const Plan& plan, int64_t stage, at::Device device) {
  StageProgramOptions options;
  options.recompute = plan.stages[static_cast<size_t>(stage)].recompute;
  options.split_backward = schedule_facts(plan.schedule).splits_backward;
  options.device = device;
  return options;
}

// The most places that the versions of a stage's weights have if dead ones leave theirs to new ones; 0: more
// than recordings are made for.
size_t fixed_places(const Plan& plan, const PipelineShape& shape, int64_t stage) {
  const WeightLag lag = weight_rule_facts(plan.weights).lag;
  if (lag == WeightLag::kNone) return 1;
  if (lag == WeightLag::kInterval) return 2;
  const auto depths = schedule_named(plan.schedule).depths(shape);
  return depths[static_cast<size_t>(lag == WeightLag::kFirstStage ? 0 : stage)] == 1 ? 1 : 0;
}

}  // namespace

StageReplica::StageReplica(const Model& model, const Plan& plan, int64_t stage, int64_t replica,
                           const TrainingRules& rules, StateSource* source, bool own_pipeline)
    : stage_(stage),
      replica_(replica),
      place_(own_pipeline ? 0 : replica),
      schedule_(plan.schedule),
      shape_(shape_of(plan, rules.gradient_accumulation)),
      turns_(shape_, stage),
      rules_(rules),
      program_(model.graph, partition(model.graph, plan), static_cast<size_t>(stage),
               options_of(plan, stage, rules.device)),
      guard_(rules.nan_guard, rules.device, stage, program_, deferred_) {
  if (rules.learning_rate_scaling == "pipedream") {
    rate_factor_ = static_cast<double>(turns_.round_length()) /
                   static_cast<double>(StageTurns(shape_, 0).round_length());
  }
  for (const TiedParameter& tied : plan.tied_parameters) {
    if (tied.stages.front() < stage) counted_elsewhere_.push_back(tied.name);
  }
  std::vector<std::string> trained;
  for (const size_t i : program_.trainable()) trained.push_back(program_.parameters()[i]);
  update_rule_ = make_update_rule(rules.optimizer, trained);
  auto state = source ? source->state_of(stage, replica, program_) : std::nullopt;
  restore(state ? std::move(*state) : first_state(model));
  round_ = std::make_unique<RoundGradients>(trainable_weights());
  if (turns_.replicas() > 1) round_->keep_in_buckets(trainable_weights(), rules.gradient_bucket_bytes);
  if (rules.cuda_graphs) prepare_recordings(model.graph, plan);
}

std::vector<at::Tensor> StageReplica::trainable_weights() const {
  std::vector<at::Tensor> trainable;
  for (const size_t i : program_.trainable()) trainable.push_back(weights()[i]);
  return trainable;
}

StageState StageReplica::first_state(const Model& model) const {
  StageState state;
  {
    const MemoryScope scope(MemoryPurpose::kWeights);
    for (const std::string& name : program_.parameters())
      state.weights.push_back(initial_parameter(model, name, rules_.seed).to(rules_.device));
  }
  const MemoryScope scope(MemoryPurpose::kOther);
  for (const std::string& name : program_.buffers())
    state.buffers.push_back(initial_buffer(model, name).to(rules_.device));
  return state;
}

void StageReplica::prepare_recordings(const Graph& graph, const Plan& plan) {
  RecordedStageSettings settings;
  settings.device = rules_.device;
  settings.seed = rules_.seed;
  settings.places = fixed_places(plan, shape_, stage_);
  settings.split_backward = schedule_facts(plan.schedule).splits_backward;
  settings.several_a_round = turns_.most_of_one_replica(turns_.round_length()) > 1;
  if (!rules_.make_graphs) {
    no_recordings_ = "the device is '" + rules_.device.str() + "', which has none";
  } else if (settings.places == 0) {
    no_recordings_ = "stage " + std::to_string(stage_) + " has several versions in flight (weights '" +
                     plan.weights + "'), which lie wherever there is room";
  } else {
    no_recordings_ = pipewright::recording_obstacle(graph, program_.segment().nodes());
  }
  if (!no_recordings_.empty()) return;
  versions_->keep_places();
  round_->keep_in_place(trainable_weights());
  settings.gradients = round_->places();
  recorded_ =
      std::make_unique<RecordedStage>(program_, rules_.make_graphs(rules_.device), std::move(settings));
}

void StageReplica::move(StageState& state, at::Device device) {
  if (rules_.device.is_cpu()) return;
  const auto to_device = [&](std::vector<at::Tensor>& tensors) {
    for (at::Tensor& tensor : tensors) tensor = tensor.detach().to(device);
  };
  to_device(state.weights);
  to_device(state.buffers);
  for (auto& [name, slots] : state.optimizer.slots) to_device(slots);
  for (auto& [number, trainable] : state.older) to_device(trainable);
}

void StageReplica::restore(StageState state) {
  PW_CHECK_EQ(state.weights.size(), program_.parameters().size());
  PW_CHECK_EQ(state.buffers.size(), program_.buffers().size());
  move(state, rules_.device);
  for (const size_t i : program_.trainable()) state.weights[i].requires_grad_(true);
  versions_ = std::make_unique<WeightVersions>(std::move(state.weights), state.updates);
  if (recorded_) versions_->keep_places();
  buffers_ = std::move(state.buffers);
  update_rule_->restore(std::move(state.optimizer));
  for (auto& [number, trainable] : state.older) {
    PW_CHECK_EQ(trainable.size(), program_.trainable().size());
    std::vector<at::Tensor>& version = older_[number] = weights();
    for (size_t i = 0; i < trainable.size(); ++i)
      version[program_.trainable()[i]] = trainable[i].requires_grad_(true);
  }
}

void StageReplica::begin(std::shared_ptr<PipelineSpan> span, int64_t began,
                         std::vector<int64_t> checkpoints) {
  PW_CHECK(in_flight_.empty() && round_->empty(), "a span begins while another one runs");
  span_ = std::move(span);
  first_version_ = versions_->updates();
  rule_ = std::make_unique<ReadVersions>(schedule_, shape_, stage_, span_->own(), span_->before(began));
  checkpoints_.assign(checkpoints.begin(), checkpoints.end());
  buffers_before_.clear();
  // Versions are kept for the forwards that will read them, and no longer.
  std::map<int64_t, int64_t> readers;
  for (const int64_t own : turns_.minibatches_of(place_, span_->own()))
    ++readers[first_version_ + rule_->of(own)];
  versions_->expect(std::move(readers), std::exchange(older_, {}));
}

void StageReplica::end(int64_t n) {
  PW_CHECK(in_flight_.empty() && round_->empty(), "a span ends with minibatches in flight");
  const Span& span = span_->of_run();
  PW_CHECK(span.first <= n && n <= span.end(), "minibatch " << n << " is not of the span");
  span_->end(n);
}

std::shared_ptr<const WeightVersion> StageReplica::version_for(int64_t k) const {
  const auto pass = in_flight_.find(k);
  auto version = pass != in_flight_.end() ? pass->second.version
                                          : versions_->find(first_version_ + rule_->of(span_->to_own(k)));
  PW_CHECK(version, "the version that minibatch " << k << " reads is not there");
  return version;
}

StageState StageReplica::state_before(int64_t n) {
  StageState state{versions_->updates(), weights(), {}, update_rule_->state(), {}};
  if (auto buffers = buffers_before_.extract(n); !buffers.empty()) {
    state.buffers = std::move(buffers.mapped());
  } else {
    for (const at::Tensor& buffer : buffers_) state.buffers.push_back(buffer.clone());
  }
  const int64_t first = span_->before(n);
  for (int64_t own = first; own < span_->own().end(); ++own) {
    const int64_t number = first_version_ + rule_->of(own);
    if (number >= state.updates) break;
    const bool first_reader = own == first || rule_->of(own) != rule_->of(own - 1);
    if (!first_reader || turns_.replica_of(own) != place_) continue;
    const auto version = version_for(*span_->to_run(own));
    std::vector<at::Tensor>& trainable = state.older[number];  // may stay empty
    for (const size_t i : program_.trainable()) trainable.push_back(version->weights[i]);
  }
  move(state, at::kCPU);
  return state;
}

StageState StageReplica::state() const {
  PW_CHECK(in_flight_.empty() && round_->empty(), "state with minibatches in flight");
  return {versions_->updates(), weights(), buffers_, update_rule_->state(), {}};
}

void StageReplica::replace(StageState state) {
  PW_CHECK(!recorded_, "recordings know where the weights lie");
  for (const size_t i : program_.trainable()) state.weights[i].requires_grad_(true);
  versions_->replace(std::move(state.weights), state.updates);
  buffers_ = std::move(state.buffers);
  update_rule_->restore(std::move(state.optimizer));
}

StageReplica::Forwarded StageReplica::forward(int64_t k, std::vector<at::Tensor> received,
                                              std::vector<at::Tensor> fields) {
  for (; !checkpoints_.empty() && checkpoints_.front() <= k; checkpoints_.pop_front()) {
    auto& before = buffers_before_[checkpoints_.front()];
    for (const at::Tensor& buffer : buffers_) before.push_back(buffer.clone());
  }
  auto version = versions_->read(first_version_ + rule_->of(span_->to_own(k)));
  Pass pass;
  Forwarded result;
  if (auto recorded =
          recorded_ ? recorded_->forward(k, received, fields, *version, buffers_) : std::nullopt) {
    pass.version = std::move(version);
    result = {std::move(recorded->sent), std::move(recorded->loss), {}};
  } else {
    pass = program_.forward(std::move(received), std::move(fields), std::move(version), buffers_,
                            {rules_.random_seed(), k});
    result = {std::exchange(pass.sent, {}), pass.loss, std::exchange(pass.scores, {})};
  }
  const auto [place, fresh] = in_flight_.emplace(k, std::move(pass));
  PW_CHECK(fresh, "minibatch " << k << " is in flight already");
  peak_in_flight_ = std::max(peak_in_flight_, static_cast<int64_t>(in_flight_.size()));
  return result;
}

void StageReplica::check_forward(int64_t k, const Forwarded& forwarded, std::vector<at::Tensor> received,
                                 std::vector<at::Tensor> fields) {
  guard_.look_at_forward(k, forwarded.loss, forwarded.sent, [&] {
    return program_.where_not_finite(in_flight_.at(k), std::move(received), std::move(fields), buffers_);
  });
}

Pass StageReplica::take_pass(int64_t k) {
  auto pass = in_flight_.extract(k);
  PW_CHECK(!pass.empty(), "backward of minibatch " << k << " without its forward");
  return std::move(pass.mapped());
}

std::vector<at::Tensor> StageReplica::backward(int64_t k, std::vector<at::Tensor> sent_gradients,
                                               const GradientComplete& complete) {
  EarlyGradients early(*round_, complete, program_.trainable().size());
  StageGradients gradients;
  const bool recorded = recorded_ && recorded_->holds(k);
  if (recorded) {
    gradients.received = recorded_->backward(k, sent_gradients, /*first=*/round_->empty());
    take_pass(k);  // from now on the version may be written over, behind the backward
  } else {
    if (recorded_) recorded_->notice(sent_gradients);
    gradients = program_.backward(take_pass(k), std::move(sent_gradients), early.made());
    if (recorded_) recorded_->warmed_up();
  }
  guard_.look_at_backward(k, gradients);
  if (recorded) {
    round_->take_from_places(complete);
  } else {
    early.add_others(std::move(gradients.weights));
  }
  return std::move(gradients.received);
}

std::vector<at::Tensor> StageReplica::backward_input(int64_t k, std::vector<at::Tensor> sent_gradients) {
  if (recorded_ && recorded_->holds(k)) return recorded_->backward_input(k, sent_gradients);
  const auto pass = in_flight_.find(k);
  PW_CHECK(pass != in_flight_.end(), "backward of minibatch " << k << " without its forward");
  if (recorded_) recorded_->notice(sent_gradients);
  return program_.backward_input(pass->second, std::move(sent_gradients));
}

void StageReplica::backward_weight(int64_t k, const GradientComplete& complete) {
  if (recorded_ && recorded_->holds(k)) {
    recorded_->backward_weight(k, /*first=*/round_->empty());
    take_pass(k);
    return round_->take_from_places(complete);
  }
  EarlyGradients early(*round_, complete, program_.trainable().size());
  early.add_others(program_.backward_weight(take_pass(k), early.made()));
  if (recorded_) recorded_->warmed_up();
}

void StageReplica::average(int64_t round) { round_->divide(turns_.round_size(round, span_->own())); }

at::Tensor StageReplica::gradient_square_sum() {
  std::vector<at::Tensor> counted;
  for (size_t i = 0; i < round_gradients().size(); ++i) {
    const std::string& name = program_.parameters()[program_.trainable()[i]];
    const bool elsewhere =
        std::find(counted_elsewhere_.begin(), counted_elsewhere_.end(), name) != counted_elsewhere_.end();
    if (!elsewhere) counted.push_back(round_gradients()[i]);
  }
  return square_sum_on(rules_.device, counted);
}

double StageReplica::learning_rate(int64_t round) const {
  return rate_factor_ * learning_rate_at(rules_.learning_rate_policy, rules_.optimizer.learning_rate,
                                         *span_->to_run(turns_.round_begin(round, span_->own())),
                                         rules_.minibatches_per_epoch, rules_.total_minibatches);
}

void StageReplica::update(int64_t round, const at::Tensor& square_sum) {
  const Span span = span_->own();
  const int64_t own = turns_.round_begin(round, span);
  const int64_t first = *span_->to_run(own);
  const int64_t last = *span_->to_run(own + turns_.round_size(round, span) - 1);
  if (rules_.gradient_clipping_norm > 0) {
    guard_.look_at_norm(square_sum, round_gradients(), first, last);
    clip(round_gradients(), square_sum, rules_.gradient_clipping_norm);
  }
  std::vector<at::Tensor> room = versions_->room(program_.trainable());
  std::vector<at::Tensor> stepped =
      update_rule_->step(trainable_weights(), round_gradients(), learning_rate(round), std::move(room));
  std::vector<at::Tensor> next = weights();
  round_->clear();
  guard_.look_at_update(*update_rule_, first, last);
  for (size_t i = 0; i < stepped.size(); ++i) next[program_.trainable()[i]] = std::move(stepped[i]);
  versions_->publish(std::move(next));
}

StageReplica::Forwarded StageReplica::evaluate(const StageProgram& program, int64_t k,
                                               std::vector<at::Tensor> received,
                                               std::vector<at::Tensor> fields) const {
  Pass pass = program.forward(std::move(received), std::move(fields), versions_->latest(), buffers_,
                              {rules_.random_seed(), k});
  return {std::move(pass.sent), std::move(pass.loss), std::move(pass.scores)};
}

}  // namespace pipewright
