#include "runtime/worker/worker.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "graph/error.h"
#include "graph/update_rules.h"
#include "models/memory/memory_meter.h"
#include "runtime/schedule/message_limits.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/split_messages.h"
#include "runtime/sync/bucket_reducer.h"
#include "runtime/transport/channel.h"
#include "runtime/update/gradient_norm.h"
#include "runtime/worker/action_range.h"
#include "runtime/worker/crossing.h"
#include "runtime/worker/loss_weights.h"
#include "runtime/worker/plan_links.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

int64_t place_of(const Plan& plan, int64_t stage, int64_t rank) {
  const auto& ranks = plan.stages[static_cast<size_t>(stage)].ranks;
  return std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
}

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Worker::Worker(const Model& model, const Plan& plan, int64_t rank, Transport* transport,
               const TrainingRules& rules, StateSource* source, PipelineServices services)
    : split_(model, plan),
      loss_shares_(model, plan, rules.loss_average, rules.gradient_accumulation),
      tags_(static_cast<int64_t>(plan.stages.size())),
      clipping_norm_(rules.gradient_clipping_norm),
      averages_weights_(sync_facts(rules.sync).averages_weights),
      transport_(transport) {
  PW_CHECK(transport || plan.world_size == 1, "a world of " << plan.world_size << " ranks needs a transport");
  const int64_t first = first_stage_of(plan, rank);
  const SyncFacts& sync = sync_facts(rules.sync);
  turn_ = turn_of(plan, sync, place_of(plan, first, rank));
  const bool several = turn_.count > 1;
  minibatches_ = several && shares_minibatches(rules.sync) ? services.minibatches : nullptr;
  PW_CHECK(minibatches_ || !several || !shares_minibatches(rules.sync),
           "sync '" << rules.sync << "' needs somebody who hands minibatches out");
  plan_ = pipeline_of(plan, turn_);
  shape_ = shape_of(plan_, rules.gradient_accumulation);
  evaluation_shape_ = evaluation_shape(shape_);
  std::vector<StageReplica*> stages;
  for (int64_t s = first; s < shape_.stages(); ++s) {
    const auto& ranks = plan.stages[static_cast<size_t>(s)].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    stages_.push_back(
        std::make_unique<StageReplica>(model, plan_, s, place_of(plan, s, rank), rules, source, several));
    stages.push_back(stages_.back().get());
    syncs_.emplace_back();
    if (ranks.size() == 1) continue;
    syncs_.back() = make_replica_sync(
        rules.sync, *transport, *stages_.back(),
        {.ranks = ranks,
         .tags = tags_,
         .optimizer = rules.optimizer,
         .updates_in_flight = updates_in_flight(plan_, rules.gradient_accumulation),
         .seed = rules.random_seed(),
         .early = rules.device.is_cpu() && has_spare_core(),
         .groups = services.groups,
         .drained = [this](double spread) { drain_spread_ = std::max(drain_spread_.value_or(0), spread); }});
  }
  tied_ = std::make_unique<TiedExchange>(plan_, stages, tags_);
}

Worker::~Worker() = default;

// One walk through an action list: the streams, and what passes from an action to the next. The list counts
// minibatches as the rank's pipeline does; stages, hooks and programs as the run does.
class Worker::Execution {
 public:
  /// `program` is of evaluation; training's own programs run if it is null.
  Execution(Worker& worker, const char* schedule, const EvaluationProgram* program,
            std::shared_ptr<const PipelineSpan> span, const WorkerHooks& hooks)
      : worker_(worker),
        program_(program),
        span_(std::move(span)),
        listed_(span_->own()),
        hooks_(hooks),
        loss_weights_(worker.loss_shares_, listed_,
                      [this](int64_t own) { return hooks_.loss_fields(*to_run(own)); }) {
    const StageReplica& first = worker.stage();
    actions_ = schedule_of_rank(schedule, shape(), first.stage(), first.place(), listed_);
    for (size_t i = 0; i < worker.stages_.size(); ++i) {
      lanes_.push_back(open_lane(*worker.stages_[i]));
      lanes_.back().sync = worker.syncs_[i].get();
    }
    if (training() && worker.averages_weights_) add_averages();
  }

  void run() {
    for (const Action& own : actions_) {
      const auto begin_of_run = to_run(first_minibatch_of(own));
      if (!begin_of_run) continue;  // another pipeline trains it
      const Action action = is_of_round(own.kind) ? own : Action{own.kind, *begin_of_run, own.stage};
      for (const auto& observer : hooks_.observers) observer->before(action);
      if (is_stopped_before(*begin_of_run)) continue;
      for (Lane& lane : lanes_) lane.stage->deferred().poll();
      const auto begin = Clock::now();
      {
        const ActionRange range(hooks_.ranges, action);
        perform(own, action.index, lane_of(own));
        for (const auto& observer : hooks_.observers) observer->prolong(action, begin);
      }
      const auto end = Clock::now();
      if (training()) count(action, seconds_between(begin, end));
      for (const auto& observer : hooks_.observers) observer->after(action, begin, end);
    }
    for (Lane& lane : lanes_) {
      lane.stage->deferred().flush();
      for (Outbox* outbox : {lane.outbox.get(), lane.gradient_outbox.get()}) {
        if (!outbox) continue;
        outbox->flush();
        if (training()) worker_.counts_.sent_bytes += outbox->sent_bytes();  // the counts are of training
      }
    }
  }

 private:
  /// What this rank does at one of its stages.
  struct Lane {
    StageReplica* stage = nullptr;
    ReplicaSync* sync = nullptr;  // null: one replica
    std::unique_ptr<Inbox> inbox;
    std::unique_ptr<Inbox> gradient_inbox;
    std::unique_ptr<Outbox> outbox;
    std::unique_ptr<Outbox> gradient_outbox;
    // Between an action and the next.
    std::vector<at::Tensor> received;
    std::vector<at::Tensor> to_send;
    std::vector<at::Tensor> received_gradients;
    std::vector<at::Tensor> gradients_to_send;
    bool averaged = false;  // the round is ready for its update
    // In the middle of a V: what the neighbouring stage of this rank has left, by minibatch.
    std::map<int64_t, std::vector<at::Tensor>> values_here, gradients_here;
    // What is exchanged at the cut before the stage, and behind it, in parts; empty: whole messages.
    std::optional<Crossing> before, behind;
  };

  /// Behind the updates that the rank's stages make together, the last stage first: where pipelines average
  /// as a whole its groups are those of all, and an earlier stage that waited for them would wait for this
  /// rank.
  void add_averages() {
    const auto together = static_cast<size_t>(
        std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.sync != nullptr; }));
    std::vector<Action> actions, averages;
    for (const Action& action : actions_) {
      actions.push_back(action);
      if (action.kind != ActionKind::kUpdate || !lane_of(action).sync) continue;
      averages.push_back({ActionKind::kAverage, action.index, action.stage});
      if (averages.size() < together) continue;
      actions.insert(actions.end(), averages.rbegin(), averages.rend());
      averages.clear();
    }
    PW_CHECK_EQ(averages.size(), size_t{0});
    actions_ = std::move(actions);
  }

  const PipelineShape& shape() const { return training() ? worker_.shape_ : worker_.evaluation_shape_; }
  /// As the pipeline counts.
  int64_t first_minibatch_of(const Action& own) {
    return is_of_round(own.kind) ? lane_of(own).stage->turns().round_begin(own.index, listed_) : own.index;
  }
  std::optional<int64_t> to_run(int64_t own) const { return span_->to_run(own); }
  bool is_stopped_before(int64_t minibatch) const {
    return training() && hooks_.stop_before && minibatch >= hooks_.stop_before();
  }
  bool training() const { return program_ == nullptr; }
  /// `own`: as the pipeline counts.
  const StageProgram& program(const StageReplica& stage, int64_t own) const {
    return program_ ? (*program_)(stage.stage(), *to_run(own)) : stage.running();
  }
  Lane& lane_of(const Action& action) { return lane_of_stage(action.stage_or(worker_.stage().stage())); }
  Lane& lane_of_stage(int64_t stage) {
    const auto lane =
        std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& l) { return l.stage->stage() == stage; });
    PW_CHECK(lane != lanes_.end(), "stage " << stage << " is not of this rank");
    return *lane;
  }
  /// The rank of another stage that processes minibatch k, as the pipeline counts.
  int64_t rank_of(int64_t stage, int64_t k) const {
    return rank_of_minibatch(worker_.plan_, shape(), stage, k);
  }
  /// The rank that a piece of minibatch k is exchanged with.
  int64_t rank_of(int64_t stage, const SampleSplit::Piece& piece, int64_t k) const {
    return piece.place == SampleSplit::Piece::kInTurn
               ? rank_of(stage, k)
               : pipewright::rank_of(worker_.plan_, stage, piece.place);
  }
  std::optional<Crossing> crossing_of(const StageReplica& stage, int64_t other) const {
    const bool there = other >= 0 && other < shape().stages();
    if (!training() || !there || !(shape().splits(stage.stage()) || shape().splits(other))) return {};
    return Crossing(worker_.split_, stage, other);
  }

  /// A receive that nobody answers would take what the next plan sends.
  Inbox::Comes comes(std::vector<int64_t> own) const {
    if (!training() || (!hooks_.stop_before && !worker_.minibatches_)) return {};
    return [this, own = std::move(own)](size_t position) {
      const auto minibatch = to_run(own[position]);
      return minibatch && !is_stopped_before(*minibatch);
    };
  }

  Lane open_lane(StageReplica& stage) const {
    Lane lane;
    lane.stage = &stage;
    if (!worker_.transport_) return lane;
    Transport& transport = *worker_.transport_;
    const int64_t s = stage.stage();
    const bool first = s == 0;
    const bool last = s + 1 == worker_.shape_.stages();
    // Of stages, which stay where they are: what is expected points there.
    lane.before = crossing_of(stage, s - 1);
    lane.behind = crossing_of(stage, s + 1);
    std::vector<Inbox::Expected> activations;
    std::vector<Inbox::Expected> gradients;
    std::vector<int64_t> of_activations, of_gradients;  // minibatches, as the pipeline counts
    for (const Action& action : actions_) {
      if (action.stage_or(worker_.stage().stage()) != s) continue;
      const int64_t k = action.index;
      if (action.kind == ActionKind::kReceiveActivation) {
        for (size_t i = 0; i < pieces(lane.before); ++i) {
          activations.push_back(
              lane.before ? Inbox::Expected{rank_of(s - 1, lane.before->piece(i), k), &lane.before->values(i)}
                          : Inbox::Expected{rank_of(s - 1, k), &program(stage, k).received_parts()});
          of_activations.push_back(k);
        }
      }
      if (action.kind == ActionKind::kReceiveGradient) {
        for (size_t i = 0; i < pieces(lane.behind); ++i) {
          gradients.push_back(
              lane.behind
                  ? Inbox::Expected{rank_of(s + 1, lane.behind->piece(i), k), &lane.behind->gradients(i)}
                  : Inbox::Expected{rank_of(s + 1, k), &program(stage, k).sent_gradient_parts()});
          of_gradients.push_back(k);
        }
      }
    }
    // Sends keep their messages, so no more are under way than memory is planned for. Activations: never more
    // than this rank's depth are outstanding while training, so none of their sends waits. Gradients, and in
    // an evaluation activations, may wait for their receiver, which closes no circle of waiting ranks
    // (runtime/schedule/order.h, tests/runtime/schedule/bounded_sends_test.cc).
    // A frozen stage waits for nothing else, so this is what holds it back.
    const auto room_before = static_cast<int64_t>(pieces(lane.before));  // messages of a minibatch
    const auto room_behind = static_cast<int64_t>(pieces(lane.behind));
    const int64_t in_flight = worker_.shape_.trains(s) ? worker_.shape_.in_flight[static_cast<size_t>(s)] : 1;
    // Two messages posted ahead: one may be arriving while the next one's sender is already asking.
    constexpr int64_t kAhead = 2;
    const Stream forwards = training() ? Stream::kActivation : Stream::kEvaluation;
    if (!first) {
      lane.inbox = std::make_unique<Inbox>(transport, worker_.tags_.of(forwards, s - 1), activations,
                                           kAhead * room_before, comes(std::move(of_activations)));
      lane.gradient_outbox = std::make_unique<Outbox>(transport, worker_.tags_.of(Stream::kGradient, s),
                                                      untaken_gradients(worker_.shape_, s) * room_before);
    }
    if (!last) {
      lane.outbox =
          std::make_unique<Outbox>(transport, worker_.tags_.of(forwards, s), (1 + in_flight) * room_behind);
      lane.gradient_inbox =
          std::make_unique<Inbox>(transport, worker_.tags_.of(Stream::kGradient, s + 1), gradients,
                                  kAhead * room_behind, comes(std::move(of_gradients)));
    }
    return lane;
  }

  /// `k`: the run's number of what the pipeline calls action.index; of a round the same.
  void perform(const Action& action, int64_t k, Lane& lane) {
    const int64_t own = action.index;
    const int64_t s = lane.stage->stage();
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
        lane.received = receive(*lane.inbox, lane.before, &Crossing::join_values);
        for (const at::Tensor& tensor : lane.received) count_memory_as(tensor, MemoryPurpose::kMessages);
        break;
      case ActionKind::kForward:
        if (s > 0 && !shape().crosses_ranks(s - 1)) lane.received = taken(&lane.values_here, own);
        forward(own, k, lane);
        if (s + 1 < shape().stages() && !shape().crosses_ranks(s))
          lane_of_stage(s + 1).values_here[own] = detached(std::exchange(lane.to_send, {}));
        break;
      case ActionKind::kSendActivation:
        send(*lane.outbox, s + 1, own, lane.behind, lane.to_send, &Crossing::values_for);
        lane.to_send.clear();
        break;
      case ActionKind::kReceiveGradient:
        lane.received_gradients = receive(*lane.gradient_inbox, lane.behind, &Crossing::join_gradients);
        for (const at::Tensor& tensor : lane.received_gradients)
          count_memory_as(tensor, MemoryPurpose::kMessages);
        break;
      case ActionKind::kBackward:
        take_gradients_here(own, lane);
        lane.gradients_to_send =
            lane.stage->backward(k, std::exchange(lane.received_gradients, {}), reduces_at_once(own, lane));
        leave_gradients_here(own, lane);
        break;
      case ActionKind::kBackwardInput:
        take_gradients_here(own, lane);
        lane.gradients_to_send = lane.stage->backward_input(k, std::exchange(lane.received_gradients, {}));
        leave_gradients_here(own, lane);
        break;
      case ActionKind::kBackwardWeight:
        lane.stage->backward_weight(k, reduces_at_once(own, lane));
        break;
      case ActionKind::kSendGradient:
        send(*lane.gradient_outbox, s - 1, own, lane.before, lane.gradients_to_send,
             &Crossing::gradients_for);
        lane.gradients_to_send.clear();
        break;
      case ActionKind::kReduce:
        worker_.counts_.sent_bytes += lane.sync->before_update();
        break;
      case ActionKind::kUpdate:
        update(k, lane);
        break;
      case ActionKind::kAverage:
        worker_.counts_.sent_bytes += lane.sync->after_update();
        break;
    }
  }

  /// What crosses no rank is handed on as a message is: read only, without the graph that it came from.
  static std::vector<at::Tensor> detached(std::vector<at::Tensor> tensors) {
    for (at::Tensor& tensor : tensors) tensor = tensor.detach();
    return tensors;
  }
  static std::vector<at::Tensor> taken(std::map<int64_t, std::vector<at::Tensor>>* here, int64_t own) {
    auto left = here->extract(own);
    PW_CHECK(!left.empty(), "minibatch " << own << " was not left by the stage beside");
    return std::move(left.mapped());
  }
  void take_gradients_here(int64_t own, Lane& lane) {
    const int64_t s = lane.stage->stage();
    if (shape().receives_gradient(s) && !shape().crosses_ranks(s))
      lane.received_gradients = taken(&lane.gradients_here, own);
  }
  void leave_gradients_here(int64_t own, Lane& lane) {
    const int64_t s = lane.stage->stage();
    if (shape().sends_gradient(s) && !shape().crosses_ranks(s - 1))
      lane_of_stage(s - 1).gradients_here[own] = std::exchange(lane.gradients_to_send, {});
  }

  static size_t pieces(const std::optional<Crossing>& crossing) { return crossing ? crossing->pieces() : 1; }

  using Join = std::vector<at::Tensor> (Crossing::*)(const std::vector<std::vector<at::Tensor>>&) const;
  static std::vector<at::Tensor> receive(Inbox& inbox, const std::optional<Crossing>& crossing, Join join) {
    if (!crossing) return inbox.next();
    std::vector<std::vector<at::Tensor>> pieces;
    for (size_t i = 0; i < crossing->pieces(); ++i) pieces.push_back(inbox.next());
    return ((*crossing).*join)(pieces);
  }

  using Cut = std::vector<at::Tensor> (Crossing::*)(size_t, const std::vector<at::Tensor>&) const;
  /// To the stage `other`.
  void send(Outbox& outbox, int64_t other, int64_t own, const std::optional<Crossing>& crossing,
            const std::vector<at::Tensor>& message, Cut cut) const {
    if (!crossing) return outbox.send(rank_of(other, own), message);
    for (size_t i = 0; i < crossing->pieces(); ++i)
      outbox.send(rank_of(other, crossing->piece(i), own), ((*crossing).*cut)(i, message));
  }

  LossWeight loss_weight(const StageReplica& stage, const std::vector<at::Tensor>& fields, int64_t own) {
    if (!training() || stage.stage() + 1 < shape().stages()) return {};
    return loss_weights_.of(stage, fields, own);
  }

  void forward(int64_t own, int64_t k, Lane& lane) {
    const StageProgram& stage = program(*lane.stage, own);
    auto fields = stage.fields().empty() ? std::vector<at::Tensor>() : hooks_.fields(lane.stage->stage(), k);
    const LossWeight weights = loss_weight(*lane.stage, fields, own);
    const double weight = weights.in_minibatch;
    if (training() && shape().splits(lane.stage->stage())) {
      for (size_t i = 0; i < fields.size(); ++i)
        fields[i] = rows_of(fields[i], worker_.split_.dimension_of(stage.fields()[i]),
                            {0, worker_.split_.samples()}, lane.stage->samples())
                        .clone(at::MemoryFormat::Contiguous);
    }
    const at::Device device = lane.stage->device();
    for (at::Tensor& field : fields)
      if (field.device() != device) field = field.to(device, /*non_blocking=*/true);
    auto received = std::exchange(lane.received, {});
    const std::vector<at::Tensor> received_kept = training() ? received : std::vector<at::Tensor>();
    const std::vector<at::Tensor> fields_kept = training() ? fields : std::vector<at::Tensor>();
    StageReplica::Forwarded forwarded =
        training() ? lane.stage->forward(k, std::move(received), std::move(fields), weights.gradient)
                   : lane.stage->evaluate(stage, k, std::move(received), std::move(fields));
    // The mean over no labels is no number.
    if (forwarded.loss.defined() && weight == 0) {
      check_counts_nothing(k, forwarded.loss, worker_.loss_shares_.divides_several());
      forwarded.loss = at::zeros_like(forwarded.loss);
    }
    if (forwarded.loss.defined() && hooks_.forward_done) {
      // Scores are large: they wait for nobody, and training has no use for them.
      const auto handed_out = training() ? std::vector<at::Tensor>() : std::move(forwarded.handed_out);
      lane.stage->deferred().push(forwarded.loss, [this, k, weight, handed_out](const at::Tensor& loss) {
        hooks_.forward_done(k, weight * loss.item<double>(), handed_out);
      });
      if (!training()) lane.stage->deferred().flush();
    }
    if (training()) lane.stage->check_forward(k, forwarded, received_kept, fields_kept);
    lane.to_send = std::move(forwarded.sent);
  }

  /// In the replica's last backward of a round, what is complete is summed over the replicas while the rest
  /// runs.
  StageReplica::GradientComplete reduces_at_once(int64_t own, const Lane& lane) const {
    if (!lane.sync || !lane.stage->turns().is_last_of_round(own, span_->own())) return {};
    return [sync = lane.sync](size_t trainable) { sync->complete(trainable); };
  }

  bool clips() const { return worker_.clipping_norm_ > 0; }
  /// Copies of a tied parameter must be scaled alike, whatever else their stages hold.
  bool clips_model() const { return clips() && clips_over_model(worker_.plan_); }
  bool updates_all_lanes_at_once() const { return !worker_.tied_->empty() || clips_model(); }

  void update(int64_t round, Lane& lane) {
    lane.stage->average(round);
    lane.averaged = true;
    const bool clips = this->clips();
    const bool over_model = clips_model();
    if (!updates_all_lanes_at_once()) {
      update(round, lane, clips ? lane.stage->gradient_square_sum() : at::Tensor());
      return;
    }
    // Copies of one parameter may be in several stages of this rank, whose updates follow each other, and the
    // norm is over all stages: all wait for the last one's gradients.
    if (!std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& each) { return each.averaged; })) return;
    if (!worker_.tied_->empty())
      worker_.counts_.sent_bytes += worker_.tied_->sum_over_stages(worker_.transport_);
    const at::Tensor of_model = over_model ? square_sum_of_all_stages() : at::Tensor();
    for (Lane& each : lanes_) {
      update(round, each, clips && !over_model ? each.stage->gradient_square_sum() : of_model);
      each.averaged = false;
    }
  }

  /// `square_sum`: of the gradients that are clipped; undefined: none are.
  void update(int64_t round, Lane& lane, const at::Tensor& square_sum) {
    if (hooks_.averaged) hooks_.averaged(*lane.stage);
    lane.stage->update(round, square_sum);
    const StageTurns& turns = lane.stage->turns();
    const Span own = span_->own();
    const int64_t end = *to_run(turns.round_begin(round, own) + turns.round_size(round, own) - 1) + 1;
    const bool last = lane.stage->stage() + 1 == worker_.shape_.stages();
    if (last && square_sum.defined() && hooks_.gradient_norm) {
      lane.stage->deferred().push(square_sum, [this, end](const at::Tensor& sum) {
        hooks_.gradient_norm(end, std::sqrt(sum.item<double>()));
      });
    }
    if (std::binary_search(hooks_.checkpoints.begin(), hooks_.checkpoints.end(), end))
      hooks_.checkpoint(end, *lane.stage);
  }

  /// The same on every rank of the pipeline; the first replica of each stage tells the stage's.
  at::Tensor square_sum_of_all_stages() {
    const at::Tensor by_stage =
        at::zeros({worker_.shape_.stages()}, at::TensorOptions(at::kDouble).device(worker_.stage().device()));
    for (const Lane& lane : lanes_) {
      if (lane.stage->place() == 0) by_stage[lane.stage->stage()].copy_(lane.stage->gradient_square_sum());
    }
    if (worker_.plan_.world_size == 1) return in_order(by_stage);
    return square_sum_of_model(*worker_.transport_, ranks_of(worker_.plan_),
                               worker_.tags_.of(Stream::kSquareSum, 0), by_stage);
  }

  void count(const Action& action, double seconds) {
    WorkerCounts& counts = worker_.counts_;
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
      case ActionKind::kUpdate:
        counts.busy_seconds += seconds;
        break;
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        counts.receive_wait_seconds += seconds;
        break;
      case ActionKind::kReduce:
      case ActionKind::kAverage:
        counts.sync_wait_seconds += seconds;
        break;
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        break;
    }
  }

  Worker& worker_;
  const EvaluationProgram* program_;
  const std::shared_ptr<const PipelineSpan> span_;
  const Span listed_;  // what actions_ has, as the pipeline counts: all that it could get
  const WorkerHooks& hooks_;
  std::vector<Action> actions_;
  std::vector<Lane> lanes_;
  LossWeights loss_weights_;
};

std::shared_ptr<PipelineSpan> Worker::open(Span span) {
  if (opened_ && opened_->of_run() == span) return opened_;
  if (minibatches_) {
    const int64_t interval = stage().turns().round_length();
    opened_ = std::make_shared<SharedSpan>(span, interval, turn_.index, *minibatches_);
  } else {
    opened_ = std::make_shared<TurnSpan>(span, turn_);
  }
  return opened_;
}

std::shared_ptr<PipelineSpan> Worker::open_evaluation(Span span) const {
  return std::make_shared<TurnSpan>(span, turn_);
}

void Worker::train(Span span, const WorkerHooks& hooks, std::optional<int64_t> began) {
  const c10::DeviceGuard on_device(stage().device());
  const at::AutoGradMode with_gradients(true);
  const auto opened = open(span);
  for (const auto& stage : stages_) stage->begin(opened, began.value_or(span.first), hooks.checkpoints);
  Execution(*this, plan_.schedule.c_str(), nullptr, opened, hooks).run();
  const bool cut_short = hooks.stop_before && hooks.stop_before() < span.end();
  if (!cut_short) drain();
}

void Worker::end_span(int64_t n) {
  const c10::DeviceGuard on_device(stage().device());
  for (const auto& stage : stages_) stage->end(n);
  drain();
}

void Worker::evaluate(Span span, const EvaluationProgram& program, const WorkerHooks& hooks) {
  const c10::DeviceGuard on_device(stage().device());
  const at::AutoGradMode without_gradients(false);
  Execution(*this, "forward", &program, open_evaluation(span), hooks).run();
}

void Worker::drain() {
  drain_spread_.reset();
  for (const auto& sync : syncs_)
    if (sync) sync->no_more_updates();
  for (const auto& sync : syncs_)
    if (sync) counts_.sent_bytes += sync->at_drain();
  counts_.largest_spread = std::max(counts_.largest_spread, drain_spread_.value_or(0));
}

}  // namespace pipewright
