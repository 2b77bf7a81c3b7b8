#include "runtime/stage/stage_replica.h"

#include <algorithm>
#include <set>
#include <utility>

#include "graph/delay_corrections.h"
#include "graph/error.h"
#include "graph/graph_identity.h"
#include "graph/recomputed_part.h"
#include "models/definition/frozen.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/stage/recording_plan.h"
#include "runtime/stage/sample_split.h"
#include "runtime/update/gradient_norm.h"

namespace pipewright {
namespace {

StageProgramOptions options_of(const Graph& graph, const Plan& plan, int64_t stage, at::Device device) {
  StageProgramOptions options;
  const Stage& planned = plan.stages[static_cast<size_t>(stage)];
  const size_t first = first_recomputed(planned, graph.together);
  options.recompute = first < planned.nodes.size();
  if (options.recompute && first > 0) {
    const auto node = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                   [&](const Node& each) { return each.name == planned.nodes[first]; });
    options.recompute_from = static_cast<size_t>(node - graph.nodes.begin());
  }
  options.split_backward = plan.splits_backward();
  options.keeping_buffers = frozen_nodes(graph, plan.frozen_layers);
  options.device = device;
  return options;
}

std::unique_ptr<UpdateRule> update_rule_of(const StageProgram& program, const OptimizerSettings& optimizer) {
  std::vector<std::string> trained;
  for (const size_t i : program.trainable()) trained.push_back(program.parameters()[i]);
  return make_update_rule(optimizer, trained);
}

std::vector<size_t> averaged_buffers_of(const Graph& graph, const StageProgram& program,
                                        int64_t frozen_layers) {
  const std::set<std::string> frozen = frozen_buffers(graph, frozen_layers);
  std::vector<size_t> averaged;
  for (size_t i = 0; i < program.buffers().size(); ++i) {
    const std::string& name = program.buffers()[i];
    const auto buffer = std::find_if(graph.buffers.begin(), graph.buffers.end(),
                                     [&](const Buffer& each) { return each.name == name; });
    if (dtype_is_floating(buffer->type.dtype) && frozen.count(name) == 0) averaged.push_back(i);
  }
  return averaged;
}

// Positions in trainable() of the parameters that no earlier stage has, too (tied ones).
std::vector<size_t> first_held(const StageProgram& program, const Plan& plan, int64_t stage) {
  std::vector<size_t> first;
  for (size_t i = 0; i < program.trainable().size(); ++i) {
    const std::string& name = program.parameters()[program.trainable()[i]];
    const bool earlier = std::any_of(
        plan.tied_parameters.begin(), plan.tied_parameters.end(),
        [&](const TiedParameter& tied) { return tied.name == name && tied.stages.front() < stage; });
    if (!earlier) first.push_back(i);
  }
  return first;
}

SampleRange samples_of_replica(const Graph& graph, const Plan& plan, int64_t stage, int64_t replica) {
  const Stage& planned = plan.stages[static_cast<size_t>(stage)];
  if (!planned.splits()) return {0, samples_of(graph)};
  return sample_ranges(samples_of(graph), planned.split).at(static_cast<size_t>(replica));
}

Graph graph_of_replica(const Model& model, const Plan& plan, int64_t stage, int64_t replica) {
  return graph_of_part(model, plan, samples_of_replica(model.graph, plan, stage, replica).size());
}

}  // namespace

StageReplica::StageReplica(const Model& model, const Plan& plan, int64_t stage, int64_t replica,
                           const TrainingRules& rules, StateSource* source, bool own_pipeline)
    : StageReplica(graph_of_replica(model, plan, stage, replica), plan,
                   shape_of(plan, rules.gradient_accumulation), stage, replica, own_pipeline ? 0 : replica,
                   rules, samples_of_replica(model.graph, plan, stage, replica)) {
  auto state = source ? source->state_of(stage, replica, program_) : std::nullopt;
  restore(state ? std::move(*state) : first_state(model, program_, rules.seed, rules.device));
  round_ = std::make_unique<RoundGradients>(versions_.latest_trainable());
  if (turns_.replicas() > 1)
    round_->keep_in_buckets(versions_.latest_trainable(), rules.gradient_bucket_bytes);
  if (rules.cuda_graphs != "off")
    prepare_recordings(model.graph, plan, shape_of(plan, rules.gradient_accumulation));
}

StageReplica::StageReplica(const Graph& graph, const Plan& plan, const PipelineShape& shape, int64_t stage,
                           int64_t replica, int64_t place, const TrainingRules& rules, SampleRange samples)
    : stage_(stage),
      replica_(replica),
      place_(place),
      turns_(shape, stage),
      samples_(samples),
      rules_(rules),
      learning_rate_(rules, shape, stage),
      program_(graph, partition(graph, plan), static_cast<size_t>(stage),
               options_of(graph, plan, stage, rules.device)),
      counted_(first_held(program_, plan, stage)),
      guard_(rules.nan_guard, rules.device, stage, program_, deferred_),
      versions_(plan.schedule, shape, stage, place, program_.trainable(), program_.segment().copied()),
      averaged_buffers_(averaged_buffers_of(graph, program_, plan.frozen_layers)),
      update_rule_(update_rule_of(program_, rules.optimizer)) {
  versions_.predict_with([this](int64_t own, int64_t updates, const std::vector<at::Tensor>& weights,
                                const std::vector<at::Tensor>& into) {
    update_rule_->predict(weights, learning_rate(turns_.round_of(own)), updates, into);
  });
}

void StageReplica::prepare_recordings(const Graph& graph, const Plan& plan, const PipelineShape& shape) {
  RecordingPlan recordings = recording_plan(graph, plan, shape, stage_, program_, rules_);
  no_recordings_ = recordings.obstacle;
  if (!no_recordings_.empty()) return;
  versions_.keep_places();
  recordings.settings.gradients = [this] {
    round_->keep_in_place(versions_.latest_trainable());
    return round_->places();
  };
  recorded_ = std::make_unique<RecordedStage>(program_, rules_.make_graphs, std::move(recordings.settings));
}

void StageReplica::restore(StageState state) {
  PW_CHECK_EQ(state.weights.size(), program_.parameters().size());
  PW_CHECK_EQ(state.buffers.size(), program_.buffers().size());
  if (!rules_.device.is_cpu()) move_to(rules_.device, state);
  versions_.restore(std::move(state.weights), state.updates, std::move(state.older));
  buffers_ = std::move(state.buffers);
  update_rule_->restore(std::move(state.optimizer));
}

std::shared_ptr<const PrefixCut> StageReplica::cut(const Graph& graph, const Plan& plan, size_t end) const {
  PW_CHECK_EQ(stage_, 0);
  return std::make_shared<PrefixCut>(graph, partition(graph, plan), end, program_,
                                     options_of(graph, plan, stage_, rules_.device));
}

void StageReplica::run_behind(std::shared_ptr<const PrefixCut> cut) {
  PW_CHECK(is_empty(), "a stage is cut with minibatches in flight");
  PW_CHECK(!recorded_, "recordings are of the whole stage");
  cut_ = std::move(cut);
}

std::shared_ptr<const WeightVersion> StageReplica::version_for_running(
    std::shared_ptr<const WeightVersion> version) const {
  return cut_ ? cut_->version_behind(*version) : std::move(version);
}

void StageReplica::begin(std::shared_ptr<PipelineSpan> span, int64_t began,
                         std::vector<int64_t> checkpoints) {
  PW_CHECK(is_empty(), "a span begins while another one runs");
  span_ = std::move(span);
  std::set<int64_t> own_checkpoints;
  for (const int64_t n : checkpoints) own_checkpoints.insert(span_->before(n));
  versions_.begin(span_->own(), span_->before(began), std::move(own_checkpoints));
  buffers_before_.begin(checkpoints);
}

void StageReplica::end(int64_t n) {
  PW_CHECK(is_empty(), "a span ends with minibatches in flight");
  const Span& span = span_->of_run();
  PW_CHECK(span.first <= n && n <= span.end(), "minibatch " << n << " is not of the span");
  span_->end(n);
}

StageState StageReplica::state_before(int64_t n) {
  StageState state{
      versions_.all().updates(), weights(), buffers_before_.take(n, buffers_), update_rule_->state(), {}};
  if (versions_.in_place() && rules_.device.is_cpu())
    for (const size_t i : program_.trainable()) state.weights[i] = state.weights[i].detach().clone();
  const auto version_of = [&](int64_t own) {
    const int64_t k = *span_->to_run(own);
    const auto pass = in_flight_.find(k);
    const bool in_flight = pass != in_flight_.end() && !versions_.in_place();
    auto version = in_flight ? pass->second.version : versions_.find(own);
    PW_CHECK(version, "the version that minibatch " << k << " reads is not there");
    return version;
  };
  state.older = versions_.older_read_in(span_->before(n), span_->own().end(), version_of);
  if (!rules_.device.is_cpu()) move_to(at::kCPU, state);
  return state;
}

StageState StageReplica::state() const {
  PW_CHECK(is_empty(), "state with minibatches in flight");
  return {versions_.all().updates(), weights(), buffers_, update_rule_->state(), {}};
}

void StageReplica::replace(StageState state) {
  PW_CHECK(!recorded_, "recordings know where the weights lie");
  versions_.replace(std::move(state.weights), state.updates);
  buffers_ = std::move(state.buffers);
  update_rule_->restore(std::move(state.optimizer));
}

StageReplica::Forwarded StageReplica::forward(int64_t k, std::vector<at::Tensor> received,
                                              std::vector<at::Tensor> fields, double loss_weight) {
  buffers_before_.forward_comes(k, buffers_);
  auto version = versions_.read(span_->to_own(k));
  versions_.begin_forward(span_->to_own(k));
  Pass pass;
  Forwarded result;
  if (auto recorded = recorded_ ? recorded_->forward(k, received, fields, *version, buffers_, loss_weight)
                                : std::nullopt) {
    pass.version = std::move(version);
    result = {std::move(recorded->sent), std::move(recorded->loss), {}};
  } else {
    if (recorded_) recorded_->begin_forward();
    const auto& buffers = cut_ ? cut_->buffers_behind(buffers_) : buffers_;
    pass = running().forward(std::move(received), std::move(fields), version_for_running(version), buffers,
                             {rules_.random_seed(), k, nullptr, samples_.begin});
    if (recorded_) recorded_->end_forward();
    pass.loss_weight = loss_weight;
    pass.version = std::move(version);  // a checkpoint may want all of it
    result = {std::exchange(pass.sent, {}), pass.loss, std::exchange(pass.handed_out, {})};
  }
  versions_.end_forward();
  const auto [place, fresh] = in_flight_.emplace(k, std::move(pass));
  PW_CHECK(fresh, "minibatch " << k << " is in flight already");
  peak_in_flight_ = std::max(peak_in_flight_, static_cast<int64_t>(in_flight_.size()));
  return result;
}

void StageReplica::check_forward(int64_t k, const Forwarded& forwarded, std::vector<at::Tensor> received,
                                 std::vector<at::Tensor> fields) {
  guard_.look_at_forward(k, forwarded.loss, forwarded.sent, [&] {
    Pass pass = in_flight_.at(k);
    pass.version = version_for_running(pass.version);
    const auto& buffers = cut_ ? cut_->buffers_behind(buffers_) : buffers_;
    versions_.begin_forward(span_->to_own(k));
    std::string where = running().where_not_finite(pass, std::move(received), std::move(fields), buffers);
    versions_.end_forward();
    return where;
  });
}

Pass StageReplica::take_pass(int64_t k) {
  auto pass = in_flight_.extract(k);
  PW_CHECK(!pass.empty(), "backward of minibatch " << k << " without its forward");
  if (versions_.in_place()) versions_.turn_back(span_->to_own(k), *pass.mapped().version);
  pass.mapped().version = version_for_running(std::move(pass.mapped().version));
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
    gradients = running().backward(take_pass(k), std::move(sent_gradients), early.made());
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
  const auto version = pass->second.version;
  pass->second.version = version_for_running(version);
  auto gradients = running().backward_input(pass->second, std::move(sent_gradients));
  pass->second.version = version;
  return gradients;
}

void StageReplica::backward_weight(int64_t k, const GradientComplete& complete) {
  if (recorded_ && recorded_->holds(k)) {
    recorded_->backward_weight(k, /*first=*/round_->empty());
    take_pass(k);
    return round_->take_from_places(complete);
  }
  EarlyGradients early(*round_, complete, program_.trainable().size());
  early.add_others(running().backward_weight(take_pass(k), early.made()));
  if (recorded_) recorded_->warmed_up();
}

void StageReplica::average(int64_t round) { round_->divide(turns_.round_size(round, span_->own())); }

at::Tensor StageReplica::gradient_square_sum() {
  std::vector<at::Tensor> counted;
  for (const size_t i : counted_) counted.push_back(round_gradients()[i]);
  return square_sum_on(rules_.device, counted);
}

double StageReplica::learning_rate(int64_t round) const {
  const int64_t own = turns_.round_begin(round, span_->own());
  const int64_t first = *span_->to_run(own);
  return learning_rate_.at(first) *
         rate_factor_of_delay(rules_, rules_.total_minibatches, first, versions_.delay_of(own));
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
  WeightVersions::Room room = versions_.room(own + turns_.round_size(round, span));
  const std::vector<at::Tensor> weights = room.in_place ? room.weights : versions_.latest_trainable();
  std::vector<at::Tensor> stepped =
      update_rule_->step(weights, round_gradients(), learning_rate(round), std::move(room.weights),
                         room.copies, versions_.delay_of(own));
  round_->clear();
  guard_.look_at_update(*update_rule_, first, last);
  versions_.publish(std::move(stepped), std::move(room));
}

void StageReplica::set_trained_weights(const std::function<at::Tensor(size_t)>& numbers) {
  const at::NoGradGuard no_grad;
  const std::vector<size_t>& trainable = program_.trainable();
  for (size_t i = 0; i < trainable.size(); ++i) weights()[trainable[i]].detach().copy_(numbers(i));
  versions_.changed();
}

StageReplica::Forwarded StageReplica::evaluate(const StageProgram& program, int64_t k,
                                               std::vector<at::Tensor> received,
                                               std::vector<at::Tensor> fields) const {
  Pass pass = program.forward(std::move(received), std::move(fields), versions_.all().latest(), buffers_,
                              {rules_.random_seed(), k});
  return {std::move(pass.sent), std::move(pass.loss), std::move(pass.handed_out)};
}

}  // namespace pipewright
