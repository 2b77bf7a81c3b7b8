#include "runtime/worker.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "graph/error.h"
#include "models/initialise.h"
#include "runtime/transport/all_reduce.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

// Tags of the streams between two ranks. A stream's parts take tags from its first one on.
constexpr int64_t kActivationTag = 0;
constexpr int64_t kGradientTag = 10'000;
constexpr int64_t kEvaluationTag = 20'000;
constexpr int64_t kReduceTag = 30'000;
constexpr int64_t kBufferTag = 30'010;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Several tensors of one dtype as one, so that they are reduced together; and back.
at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

std::vector<at::Tensor> unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> tensors;
  int64_t begin = 0;
  for (const at::Tensor& tensor : like) {
    tensors.push_back(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
  return tensors;
}

// Applies `function` to all tensors of one dtype at a time, as one flat tensor, and puts the results back.
template <typename Function>
void by_dtype(std::vector<at::Tensor>& tensors, Function function) {
  std::vector<bool> done(tensors.size(), false);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (done[i]) continue;
    std::vector<size_t> positions;
    std::vector<at::Tensor> group;
    for (size_t j = i; j < tensors.size(); ++j) {
      if (tensors[j].scalar_type() != tensors[i].scalar_type()) continue;
      positions.push_back(j);
      group.push_back(tensors[j]);
      done[j] = true;
    }
    const at::Tensor flat = flatten(group);
    function(flat);
    const auto parts = unflatten(flat, group);
    for (size_t j = 0; j < positions.size(); ++j) tensors[positions[j]] = parts[j];
  }
}

}  // namespace

Worker::Worker(const Model& model, const Plan& plan, int64_t rank, Transport* transport,
               const TrainingRules& rules)
    : plan_(plan), shape_(shape_of(plan)), rank_(rank), transport_(transport), rules_(rules) {
  bool found = false;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const auto& ranks = plan.stages[s].ranks;
    const auto place = std::find(ranks.begin(), ranks.end(), rank);
    if (place == ranks.end()) continue;
    stage_index_ = static_cast<int64_t>(s);
    replica_ = place - ranks.begin();
    found = true;
  }
  PW_CHECK(found, "rank " << rank << " has no place in the plan");
  PW_CHECK(transport || plan.world_size == 1, "a world of " << plan.world_size << " ranks needs a transport");

  stage_ = std::make_unique<StageProgram>(model.graph, partition(model.graph, plan),
                                          static_cast<size_t>(stage_index_));
  std::vector<at::Tensor> weights;
  for (const std::string& name : stage_->parameters())
    weights.push_back(initial_parameter(model, name, rules.seed));
  for (const size_t i : stage_->trainable()) weights[i].requires_grad_(true);
  versions_ = std::make_unique<WeightVersions>(std::move(weights));
  for (const std::string& name : stage_->buffers()) buffers_.push_back(initial_buffer(model, name));
  update_rule_ = make_update_rule(rules.optimizer);
}

StageState Worker::state() const {
  return {versions_->updates(), weights(), buffers_, update_rule_->state()};
}

void Worker::restore(StageState state) {
  PW_CHECK_EQ(state.weights.size(), stage_->parameters().size());
  PW_CHECK_EQ(state.buffers.size(), stage_->buffers().size());
  for (const size_t i : stage_->trainable()) state.weights[i].requires_grad_(true);
  versions_ = std::make_unique<WeightVersions>(std::move(state.weights), state.updates);
  buffers_ = std::move(state.buffers);
  update_rule_->restore(std::move(state.optimizer));
}

std::vector<int64_t> Worker::minibatches(Span span) const {
  return StageTurns(shape_, stage_index_).minibatches_of(replica_, span);
}

// One walk through an action list: the streams, what is in flight, the gradients of the current round.
class Worker::Execution {
 public:
  /// `stage_for(k)` runs minibatch k.
  Execution(Worker& worker, std::vector<Action> actions,
            std::function<const StageProgram&(int64_t)> stage_for, bool training, Span span,
            const WorkerHooks& hooks)
      : worker_(worker),
        actions_(std::move(actions)),
        stage_for_(std::move(stage_for)),
        training_(training),
        span_(span),
        turns_(worker.shape_, worker.stage_index_),
        hooks_(hooks) {
    const int64_t depth = worker.shape_.in_flight[static_cast<size_t>(worker.stage_index_)];
    const int64_t activation_tag = training ? kActivationTag : kEvaluationTag;
    std::vector<Inbox::Expected> activations;
    std::vector<Inbox::Expected> gradients;
    bool sends_activations = false;
    bool sends_gradients = false;
    for (const Action& action : actions_) {
      switch (action.kind) {
        case ActionKind::kReceiveActivation:
          activations.push_back({neighbour(-1, action.index), &stage_for_(action.index).received_parts()});
          break;
        case ActionKind::kReceiveGradient:
          gradients.push_back({neighbour(+1, action.index), &stage_for_(action.index).sent_gradient_parts()});
          break;
        case ActionKind::kSendActivation:
          sends_activations = true;
          break;
        case ActionKind::kSendGradient:
          sends_gradients = true;
          break;
        default:
          break;
      }
    }
    // Sends keep their messages, so no more are under way than memory is planned for. Activations: never more
    // than this rank's depth are outstanding while training, so none of their sends waits. Gradients may wait
    // for their receiver, which closes no circle of waiting ranks (docs/schedules.md).
    // Two messages posted ahead: one may be arriving while the next one's sender is already asking.
    constexpr int64_t kAhead = 2;
    if (!activations.empty())
      inbox_ = std::make_unique<Inbox>(*worker.transport_, activation_tag, activations, kAhead);
    if (!gradients.empty()) {
      gradient_inbox_ = std::make_unique<Inbox>(*worker.transport_, kGradientTag, gradients, kAhead);
    }
    if (sends_activations) outbox_ = std::make_unique<Outbox>(*worker.transport_, activation_tag, depth + 1);
    if (sends_gradients)
      gradient_outbox_ = std::make_unique<Outbox>(*worker.transport_, kGradientTag, depth + 1);
  }

  void run() {
    for (const Action& action : actions_) {
      if (hooks_.before) hooks_.before(action);
      if (is_left_out(action)) continue;
      const auto begin = Clock::now();
      perform(action);
      const auto end = Clock::now();
      if (training_) count(action, seconds_between(begin, end));
      if (hooks_.after) hooks_.after(action, begin, end);
    }
    if (outbox_) outbox_->flush();
    if (gradient_outbox_) gradient_outbox_->flush();
    if (!training_) return;  // the counts are of training
    if (outbox_) worker_.counts_.sent_bytes += outbox_->sent_bytes();
    if (gradient_outbox_) worker_.counts_.sent_bytes += gradient_outbox_->sent_bytes();
  }

 private:
  bool is_left_out(const Action& action) const {
    if (!training_ || !hooks_.stop_before) return false;
    return (is_of_round(action.kind) ? turns_.round_begin(action.index, span_) : action.index) >=
           hooks_.stop_before();
  }

  // The rank of the neighbouring stage that processes minibatch k.
  int64_t neighbour(int64_t direction, int64_t k) const {
    const auto& ranks = worker_.plan_.stages[static_cast<size_t>(worker_.stage_index_ + direction)].ranks;
    return ranks[static_cast<size_t>(replica_of(worker_.shape_, worker_.stage_index_ + direction, k))];
  }

  void perform(const Action& action) {
    const int64_t k = action.index;
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
        received_ = inbox_->next();
        break;
      case ActionKind::kForward:
        forward(k);
        break;
      case ActionKind::kSendActivation:
        outbox_->send(neighbour(+1, k), to_send_);
        to_send_.clear();
        break;
      case ActionKind::kReceiveGradient:
        received_gradients_ = gradient_inbox_->next();
        break;
      case ActionKind::kBackward:
        backward(k);
        break;
      case ActionKind::kSendGradient:
        gradient_outbox_->send(neighbour(-1, k), gradients_to_send_);
        gradients_to_send_.clear();
        break;
      case ActionKind::kReduce:
        round_gradients_ = worker_.reduce(std::move(round_gradients_), turns_.round_size(k, span_));
        break;
      case ActionKind::kUpdate:
        worker_.update(round_gradients_, turns_.round_begin(k, span_));
        round_gradients_.clear();
        break;
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
        PW_CHECK(false, to_text(action) << ": no schedule that trains here splits the backward");
    }
  }

  void forward(int64_t k) {
    const StageProgram& stage = stage_for_(k);
    auto fields = stage.fields().empty() ? std::vector<at::Tensor>() : hooks_.fields(k);
    Pass pass = stage.forward(std::move(received_), std::move(fields), worker_.versions_->latest(),
                              worker_.buffers_, {worker_.rules_.seed, k});
    received_.clear();
    if (pass.loss.defined() && hooks_.forward_done)
      hooks_.forward_done(k, pass.loss.item<double>(), pass.scores);
    pass.scores.reset();
    for (const at::Tensor& tensor : pass.sent) to_send_.push_back(tensor.detach());
    if (!at::GradMode::is_enabled()) return;
    in_flight_.emplace(k, std::move(pass));
    worker_.counts_.peak_in_flight =
        std::max(worker_.counts_.peak_in_flight, static_cast<int64_t>(in_flight_.size()));
  }

  void backward(int64_t k) {
    auto pass = in_flight_.extract(k);
    PW_CHECK(!pass.empty(), "backward of minibatch " << k << " without its forward");
    StageGradients gradients =
        stage_for_(k).backward(std::move(pass.mapped()), std::move(received_gradients_));
    received_gradients_.clear();
    gradients_to_send_ = std::move(gradients.received);
    PW_CHECK(round_gradients_.empty(), "two backwards in one round of a replica");
    round_gradients_ = std::move(gradients.weights);
  }

  void count(const Action& action, double seconds) {
    WorkerCounts& counts = worker_.counts_;
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kUpdate:
        counts.busy_seconds += seconds;
        break;
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        counts.receive_wait_seconds += seconds;
        break;
      case ActionKind::kReduce:
        counts.sync_wait_seconds += seconds;
        break;
      default:
        break;
    }
  }

  Worker& worker_;
  std::vector<Action> actions_;
  std::function<const StageProgram&(int64_t)> stage_for_;
  bool training_;
  Span span_;
  StageTurns turns_;
  const WorkerHooks& hooks_;
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<Inbox> gradient_inbox_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<Outbox> gradient_outbox_;

  // Between an action and the next.
  std::vector<at::Tensor> received_;
  std::vector<at::Tensor> to_send_;
  std::vector<at::Tensor> received_gradients_;
  std::vector<at::Tensor> gradients_to_send_;
  std::vector<at::Tensor> round_gradients_;  // empty: this replica had no minibatch in the round
  std::map<int64_t, Pass> in_flight_;
};

void Worker::train(Span span, const WorkerHooks& hooks) {
  auto actions = schedule_of_rank(plan_.schedule, shape_, stage_index_, replica_, span);
  const at::AutoGradMode with_gradients(true);
  Execution(
      *this, std::move(actions), [this](int64_t) -> const StageProgram& { return *stage_; },
      /*training=*/true, span, hooks)
      .run();
  average_buffers();
}

void Worker::evaluate(const std::vector<const StageProgram*>& stages, const WorkerHooks& hooks) {
  const Span span{0, static_cast<int64_t>(stages.size())};
  auto actions = schedule_of_rank("forward", shape_, stage_index_, replica_, span);
  const at::AutoGradMode without_gradients(false);
  Execution(
      *this, std::move(actions),
      [&stages](int64_t k) -> const StageProgram& { return *stages[static_cast<size_t>(k)]; },
      /*training=*/false, span, hooks)
      .run();
}

std::vector<at::Tensor> Worker::reduce(std::vector<at::Tensor> gradients, int64_t round_minibatches) {
  const auto& ranks = plan_.stages[static_cast<size_t>(stage_index_)].ranks;
  if (gradients.empty()) {
    for (const size_t i : stage_->trainable()) gradients.push_back(at::zeros_like(weights()[i]));
  }
  const at::NoGradGuard no_grad;
  by_dtype(gradients, [&](const at::Tensor& flat) {
    counts_.sent_bytes += all_reduce_sum(*transport_, ranks, kReduceTag, flat);
    flat.div_(static_cast<double>(round_minibatches));
  });
  return gradients;
}

void Worker::update(const std::vector<at::Tensor>& gradients, int64_t first_minibatch_of_round) {
  double rate =
      learning_rate_at(rules_.learning_rate_policy, rules_.optimizer.learning_rate, first_minibatch_of_round,
                       rules_.minibatches_per_epoch, rules_.total_minibatches);
  if (rules_.learning_rate_scaling == "pipedream") {
    rate *= static_cast<double>(shape_.replicas[static_cast<size_t>(stage_index_)]) /
            static_cast<double>(shape_.replicas.front());
  }
  std::vector<at::Tensor> room = versions_->room(stage_->trainable());
  std::vector<at::Tensor> next = weights();
  std::vector<at::Tensor> trained;
  for (const size_t i : stage_->trainable()) trained.push_back(next[i]);
  std::vector<at::Tensor> stepped = update_rule_->step(trained, gradients, rate, std::move(room));
  for (size_t i = 0; i < stepped.size(); ++i) next[stage_->trainable()[i]] = std::move(stepped[i]);
  versions_->publish(std::move(next));
}

void Worker::average_buffers() {
  const auto& ranks = plan_.stages[static_cast<size_t>(stage_index_)].ranks;
  if (ranks.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> floating;
  for (const at::Tensor& buffer : buffers_) {
    if (buffer.is_floating_point()) floating.push_back(buffer);
  }
  std::vector<at::Tensor> averages = floating;
  by_dtype(averages, [&](const at::Tensor& flat) {
    counts_.sent_bytes += all_reduce_sum(*transport_, ranks, kBufferTag, flat);
    flat.div_(static_cast<double>(ranks.size()));
  });
  for (size_t i = 0; i < floating.size(); ++i) floating[i].copy_(averages[i]);
}

}  // namespace pipewright
