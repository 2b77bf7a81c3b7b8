#include <algorithm>
#include <deque>
#include <memory>
#include <queue>

#include "graph/error.h"
#include "runtime/schedule/network.h"
#include "runtime/schedule/timeline.h"

namespace pipewright {
namespace {

bool of_gradients(ActionKind kind) {
  return kind == ActionKind::kReceiveGradient || kind == ActionKind::kSendGradient;
}

}  // namespace

class Events {
 public:
  Events(Timeline& timeline, const SimulationOptions& options)
      : timeline_(timeline),
        options_(options),
        messages_(timeline.shape(), timeline.span()),
        meetings_(timeline.shape()),
        message_(messages_.count()),
        ranks_(timeline.lists().size()),
        reduces_(static_cast<size_t>(timeline.shape().stages())),
        first_rank_(first_ranks(timeline.shape())),
        exchanges_(static_cast<size_t>(timeline.shape().stages())) {
    for (int64_t stage = 0; stage < timeline.shape().stages(); ++stage)
      turns_.emplace_back(timeline.shape(), stage);
    if (!options.network.empty()) open_network();
    if (options.cores.too_few_for(static_cast<int64_t>(ranks_.size()))) open_cores();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) open_streams(static_cast<int64_t>(rank));
  }

  void run() {
    run_until(timeline_.span().count + 1);
    std::vector<size_t> position;
    for (const Rank& rank : ranks_) position.push_back(rank.position);
    timeline_.check_done(position);
  }

  /// See EventRun. Messages that have arrived, or were asked for, follow from what every rank and link does.
  bool state(RunState* state) const {
    if (!timeline_.shape().tied.empty()) return false;  // meetings under way are not in it
    state->at.clear();
    state->left.clear();
    const auto add_action = [&](size_t rank, size_t position) {
      const Action& action = timeline_.lists()[rank][position];
      const int64_t stage = timeline_.stage_of(static_cast<int64_t>(rank), action);
      const int64_t minibatches = is_of_round(action.kind) ? turns_[stage].round_length() : 1;
      state->at.push_back(static_cast<int64_t>(action.kind));
      state->at.push_back(action.index * minibatches - timeline_.completed());
      state->at.push_back(stage);
    };
    const auto add_left = [&](double until) { state->left.push_back(until > now_ ? until - now_ : -1); };
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank& at = ranks_[rank];
      if (at.position == timeline_.lists()[rank].size()) return false;
      add_action(rank, at.position);
      add_left(at.until);
      if (cores_) state->left.push_back(cores_->part_left(static_cast<int32_t>(rank), now_));
      for (const int64_t kind : {0, 1, 2}) {
        const bool empty = kind < 2 && at.link[kind].empty();
        state->at.push_back(empty ? 1 : 0);
        if (empty) continue;
        if (kind < 2) add_action(rank, at.link[kind].front().position);
        add_left(at.flow_until[kind]);
        if (!network_) continue;
        const int64_t flow = flow_of(static_cast<int64_t>(rank), kind);
        state->left.push_back(network_->part_left(static_cast<int32_t>(flow), now_));
      }
    }
    for (int64_t stage = 0; cores_ && stage < timeline_.shape().stages(); ++stage)
      state->left.push_back(cores_->part_left(sum_on_cores(stage), now_));
    return true;
  }

  double now() const { return now_; }

  void run_until(int64_t completed) {
    if (!begun_)
      for (size_t rank = 0; rank < ranks_.size(); ++rank) advance(static_cast<int64_t>(rank));
    begun_ = true;
    while (timeline_.completed() < completed) {
      // Rates change once for all that happens at the same time.
      const double next = queue_.empty() ? FairNetwork::kNever : queue_.top().seconds;
      if (network_ && network_->unsettled() && next > now_) network_->settle(now_);
      if (cores_ && cores_->unsettled() && next > now_) cores_->settle(now_);
      const double arrives = network_ ? network_->next_arrival() : FairNetwork::kNever;
      const double computed = cores_ ? cores_->next_arrival() : FairNetwork::kNever;
      if (std::min(arrives, computed) < next) {
        now_ = std::min(arrives, computed);
        if (computed < arrives)
          finish_on_cores(cores_->next_flow());
        else
          arrive(network_->next_flow());
        continue;
      }
      if (queue_.empty()) break;
      const Event event = queue_.top();
      queue_.pop();
      now_ = event.seconds;
      if (event.kind == kRankGoesOn)
        finish_action(event.number);
      else if (event.kind == kRankMaySend)
        send_on(event.number);
      else if (event.kind == kBegins)
        begin_flow(event.number);
      else if (event.kind == kArrives)
        arrive(event.number);
      else if (event.kind == kMet)
        finish_meeting(event.number);
      else
        finish_reduce(event.number);
    }
  }

 private:
  enum EventKind : int32_t { kRankGoesOn, kRankMaySend, kBegins, kArrives, kReduced, kMet };
  struct Event {
    double seconds = 0;
    int64_t order = 0;  // of equal times, as they were found
    EventKind kind = kRankGoesOn;
    int32_t number = 0;  // rank; flow; stage; meeting
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.seconds != b.seconds ? a.seconds > b.seconds : a.order > b.order;
    }
  };
  static constexpr int64_t kNobody = -1;
  static constexpr int64_t kFrozenRoom = 2;

  struct Message {
    double begin = 0, end = 0, seconds = 0;  // of the transfer
    bool arrived = false, asked = false;
    int64_t receiver = kNobody;  // waits for it to arrive
    int64_t sender = kNobody;    // waits for it to be asked for
  };
  // Messages of one rank, stage and kind.
  struct Stream {
    std::vector<size_t> order;     // in: all to come
    size_t next = 0, asked = 0;    // in: to consume, to ask for
    std::deque<size_t> under_way;  // out: sent, perhaps not asked for
  };
  // What is on a rank's outgoing link of one kind: the first is under way, the others wait.
  struct Transfer {
    size_t position = 0;  // of the send in the rank's list
    size_t message = 0;
    int64_t receiver = 0;
    double bytes = 0, seconds = 0;
    double extra_seconds = 0;  // of them, or behind the network's: a disturbance
  };
  struct Rank {
    size_t position = 0;
    double since = 0;                     // the action at `position` began to wait or to run
    double until = -1;                    // and runs until then
    double flow_until[3] = {-1, -1, -1};  // by kind, latencies and what has no network
    bool sending = false;                 // blocking: until its message has arrived
    std::vector<Stream>
        streams;  // by stage of the rank: in activations, gradients, out activations, gradients
    std::deque<Transfer> link[2];
    std::vector<std::pair<int64_t, LinkTree::Path>> paths;  // by receiver, those taken so far
  };
  struct Reduce {
    int64_t arrived = 0;
    double begin = 0;
  };

  void push(double seconds, EventKind kind, int64_t number) {
    if (kind == kRankGoesOn) ranks_[number].until = seconds;
    if (kind == kBegins || (kind == kArrives && !network_))
      ranks_[number / 3].flow_until[number % 3] = seconds;
    if (kind == kReduced) ranks_[first_rank_[number]].flow_until[2] = seconds;
    queue_.push({seconds, ++order_, kind, static_cast<int32_t>(number)});
  }

  // --- set-up ---

  void open_network() {
    tree_ = std::make_unique<LinkTree>(options_.network);
    network_ = std::make_unique<FairNetwork>(tree_->bandwidths());
    PW_CHECK_LE(static_cast<int64_t>(ranks_.size()), tree_->devices());
    PW_CHECK_EQ(options_.messages.size(), static_cast<size_t>(timeline_.shape().stages()));
    PW_CHECK(options_.devices.empty() || options_.devices.size() == ranks_.size(),
             options_.devices.size() << " devices for " << ranks_.size() << " ranks");
  }

  /// A link for each rank, its one core at most, and one for each host.
  void open_cores() {
    std::vector<double> bandwidths(ranks_.size(), 1);
    int64_t hosts = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      hosts = std::max(hosts, device(static_cast<int64_t>(rank)) / options_.cores.devices + 1);
    bandwidths.resize(ranks_.size() + static_cast<size_t>(hosts), static_cast<double>(options_.cores.cores));
    cores_ = std::make_unique<FairNetwork>(bandwidths);
  }

  int32_t cores_of(int64_t rank) const {
    return static_cast<int32_t>(static_cast<int64_t>(ranks_.size()) + device(rank) / options_.cores.devices);
  }

  /// No stage splits here, so there is one.
  size_t message_of(int64_t rank, const Action& action) const {
    return messages_.of(action, timeline_.stage_of(rank, action), 0).first;
  }

  int64_t device(int64_t rank) const { return options_.devices.empty() ? rank : options_.devices[rank]; }

  Stream& stream(int64_t rank, const Action& action, bool out) {
    const Placement& at = timeline_.placements()[rank];
    const int64_t slot = at.stages == 1 ? 0 : (action.stage - at.stage) / at.apart;
    return ranks_[rank].streams[static_cast<size_t>(4 * slot + (out ? 2 : 0) + of_gradients(action.kind))];
  }

  void open_streams(int64_t rank) {
    ranks_[rank].streams.resize(static_cast<size_t>(4 * timeline_.placements()[rank].stages));
    for (const Action& action : timeline_.lists()[rank])
      if (action.kind == ActionKind::kReceiveActivation || action.kind == ActionKind::kReceiveGradient)
        stream(rank, action, false).order.push_back(message_of(rank, action));
    for (Stream& in : ranks_[rank].streams) ask_up_to(in, options_.receive_ahead);
  }

  // --- what ranks do ---

  /// Runs the rank's actions until one takes time or waits.
  void advance(int64_t rank) {
    Rank& at = ranks_[rank];
    const std::vector<Action>& list = timeline_.lists()[rank];
    at.since = now_;
    while (at.position < list.size() && step(rank, list[at.position])) {
      ++at.position;
      at.since = now_;
    }
  }

  /// Whether the action is over.
  bool step(int64_t rank, const Action& action) {
    const int64_t stage = timeline_.stage_of(rank, action);
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        return receive(rank, action);
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        return send(rank, action, stage);
      case ActionKind::kReduce:
        reach_reduce(stage);
        return false;
      case ActionKind::kUpdate:
        if (waits_to_update(rank)) return false;
        break;
      default:
        break;
    }
    compute(rank, timeline_.seconds_of(rank, action, stage, now_));
    return false;
  }

  /// The rank's action takes so long with a core to itself.
  void compute(int64_t rank, double seconds) {
    if (cores_ && seconds > 0)
      cores_->add(static_cast<int32_t>(rank), {static_cast<int32_t>(rank), cores_of(rank)}, seconds, now_);
    else
      push(now_ + seconds, kRankGoesOn, rank);
  }

  // On cores ranks compute, and stages sum.
  int32_t sum_on_cores(int64_t stage) const {
    return static_cast<int32_t>(static_cast<int64_t>(ranks_.size()) + stage);
  }

  void finish_on_cores(int32_t flow) {
    cores_->remove(flow);
    const auto ranks = static_cast<int32_t>(ranks_.size());
    if (flow < ranks)
      finish_action(flow);
    else
      finish_reduce(flow - ranks);
  }

  /// The rank's action has taken its time.
  void finish_action(int64_t rank) {
    Rank& at = ranks_[rank];
    const Action& action = timeline_.lists()[rank][at.position];
    if (is_of_message(action.kind))
      take(rank, action);
    else
      timeline_.computed(rank, action, timeline_.stage_of(rank, action), at.since, now_);
    ++at.position;
    advance(rank);
  }

  // --- receiving ---

  bool receive(int64_t rank, const Action& action) {
    Stream& in = stream(rank, action, false);
    ask_up_to(in, 1);
    Message& message = message_[in.order[in.next]];
    if (!message.arrived) {
      message.receiver = rank;
      return false;
    }
    if (options_.blocking_transfers && occupied_until(rank, message) > now_) {
      push(occupied_until(rank, message), kRankGoesOn, rank);
      return false;
    }
    take(rank, action);
    return true;
  }

  /// A receiver is busy for as long as the transfer, from when both were there.
  double occupied_until(int64_t rank, const Message& message) const {
    return std::max(ranks_[rank].since + message.seconds, message.end);
  }

  void take(int64_t rank, const Action& action) {
    Stream& in = stream(rank, action, false);
    timeline_.received(rank, action, ranks_[rank].since, now_);
    ++in.next;
    ask_up_to(in, options_.receive_ahead);
  }

  void ask_up_to(Stream& in, int64_t count) {
    const size_t end = std::min(in.order.size(), in.next + static_cast<size_t>(count));
    for (; in.asked < end; ++in.asked) {
      Message& message = message_[in.order[in.asked]];
      message.asked = true;
      if (message.sender == kNobody) continue;
      // Not at once: the sender may be in the middle of what led here.
      push(now_, kRankMaySend, message.sender);
      message.sender = kNobody;
    }
  }

  // --- sending ---

  /// Messages of a rank and kind that may not have been asked for; 0: any number. A stage that is trained
  /// waits for gradients, a frozen one for room: for one message more than it has in flight.
  int64_t room_of(int64_t stage, bool gradient) const {
    const bool waits_for_nobody = !gradient && !timeline_.shape().trains(stage) && timeline_.trains();
    const int64_t frozen = waits_for_nobody ? kFrozenRoom : 0;
    return options_.send_queue > 0 && frozen > 0 ? std::min(options_.send_queue, frozen)
                                                 : std::max(options_.send_queue, frozen);
  }

  bool send(int64_t rank, const Action& action, int64_t stage) {
    Rank& at = ranks_[rank];
    const int64_t room = room_of(stage, of_gradients(action.kind));
    if (room > 0) {
      std::deque<size_t>& under_way = stream(rank, action, true).under_way;
      while (!under_way.empty() && message_[under_way.front()].asked) under_way.pop_front();
      if (static_cast<int64_t>(under_way.size()) >= room) {
        message_[under_way.front()].sender = rank;
        return false;
      }
      under_way.push_back(message_of(rank, action));
    }
    const bool gradient = of_gradients(action.kind);
    const StageTimes& times = timeline_.times_of(stage);
    const int64_t other = stage + (gradient ? -1 : 1);
    Transfer transfer{at.position, message_of(rank, action)};
    transfer.receiver = first_rank_[other] + turns_[other].replica_of(action.index);
    transfer.extra_seconds = timeline_.message_seconds(rank, action, stage);
    transfer.seconds =
        transfer.extra_seconds + (gradient ? times.send_gradient_seconds : times.send_activation_seconds);
    if (network_) {
      const StageMessages& bytes = options_.messages[stage];
      transfer.bytes = static_cast<double>(gradient ? bytes.gradient_bytes : bytes.activation_bytes);
    }
    std::deque<Transfer>& link = at.link[gradient];
    link.push_back(transfer);
    if (link.size() == 1) begin_transfer(rank, gradient);
    if (options_.blocking_transfers) {
      at.sending = true;
      return false;
    }
    if (at.since < now_) timeline_.waited_to_send(rank, at.since, now_);
    return true;
  }

  // A rank has one flow each for activations, gradients and reduces.
  static int64_t flow_of(int64_t rank, int64_t kind) { return 3 * rank + kind; }

  void begin_transfer(int64_t rank, bool gradient) {
    const Transfer& transfer = ranks_[rank].link[gradient].front();
    message_[transfer.message].begin = now_;
    const int64_t flow = flow_of(rank, gradient);
    const double latency =
        network_ ? transfer.extra_seconds + path_of(rank, transfer.receiver).latency_seconds : 0;
    if (!network_)
      push(now_ + transfer.seconds, kArrives, flow);
    else if (latency > 0)
      push(now_ + latency, kBegins, flow);
    else
      begin_flow(flow);
  }

  const LinkTree::Path& path_of(int64_t rank, int64_t receiver) {
    auto& known = ranks_[rank].paths;
    for (const auto& [to, path] : known)
      if (to == receiver) return path;
    known.emplace_back(receiver, tree_->path(device(rank), device(receiver)));
    return known.back().second;
  }

  /// A message that filled the queue has been asked for.
  void send_on(int64_t rank) {
    if (!step(rank, current(rank))) return;
    ++ranks_[rank].position;
    advance(rank);
  }

  /// The latency of a flow is over.
  void begin_flow(int64_t flow) {
    const int64_t rank = flow / 3, kind = flow % 3;
    const auto number = static_cast<int32_t>(flow);
    if (kind == 2) {
      const int64_t stage = timeline_.stage_of(rank, timeline_.lists()[rank][ranks_[rank].position]);
      const LinkTree::Exchange& exchange = exchange_of(stage);
      network_->add(number, exchange.links, exchanged_bytes(stage), now_, exchange.weights);
      return;
    }
    const Transfer& transfer = ranks_[rank].link[kind].front();
    network_->add(number, path_of(rank, transfer.receiver).links, transfer.bytes, now_);
  }

  void arrive(int64_t flow) {
    if (network_) network_->remove(static_cast<int32_t>(flow));
    const int64_t rank = flow / 3, kind = flow % 3;
    if (kind == 2) {
      const int64_t stage = timeline_.stage_of(rank, timeline_.lists()[rank][ranks_[rank].position]);
      finish_reduce(stage);
      return;
    }
    Rank& sender = ranks_[rank];
    const Transfer transfer = sender.link[kind].front();
    sender.link[kind].pop_front();
    Message& message = message_[transfer.message];
    message.arrived = true;
    message.end = now_;
    message.seconds = network_ ? now_ - message.begin : transfer.seconds;
    timeline_.sent(rank, timeline_.lists()[rank][transfer.position], message.begin, now_);
    if (!sender.link[kind].empty()) begin_transfer(rank, kind == 1);
    if (sender.sending) {
      sender.sending = false;
      timeline_.waited_to_send(rank, sender.since, now_);
      ++sender.position;
      advance(rank);
    }
    if (message.receiver == kNobody) return;
    const int64_t receiver = message.receiver;
    message.receiver = kNobody;
    Rank& waiting = ranks_[receiver];
    if (!receive(receiver, timeline_.lists()[receiver][waiting.position])) return;
    ++waiting.position;
    advance(receiver);
  }

  // --- reducing ---

  // What each replica sends and receives: its parts of all gradients, then the sums.
  double exchanged_bytes(int64_t stage) const {
    const auto replicas = static_cast<double>(timeline_.shape().replicas[stage]);
    return 2 * (replicas - 1) / replicas * static_cast<double>(options_.messages[stage].reduce_bytes);
  }

  const LinkTree::Exchange& exchange_of(int64_t stage) {
    LinkTree::Exchange& exchange = exchanges_[stage];
    if (exchange.links.empty()) {
      std::vector<int64_t> devices(static_cast<size_t>(timeline_.shape().replicas[stage]));
      for (size_t q = 0; q < devices.size(); ++q)
        devices[q] = device(first_rank_[stage] + static_cast<int64_t>(q));
      exchange = tree_->exchange(devices);
    }
    return exchange;
  }

  void reach_reduce(int64_t stage) {
    const int64_t begin = first_rank_[stage], end = begin + timeline_.shape().replicas[stage];
    Reduce& reduce = reduces_[stage];
    if (++reduce.arrived < end - begin) return;
    for (int64_t rank = begin; rank < end; ++rank)
      if (!(current(rank) == current(begin))) return;  // will wait for ever
    reduce.begin = now_;
    const bool nothing = network_ && options_.messages[stage].reduce_bytes == 0;
    if (!network_ || nothing) {
      const double seconds = nothing ? 0 : timeline_.times_of(stage).reduce_seconds;
      if (cores_ && options_.sums_take_cores && seconds > 0)
        sum_on_their_cores(stage, seconds);
      else
        push(now_ + seconds, kReduced, stage);
      return;
    }
    push(now_ + 2 * exchange_of(stage).latency_seconds, kBegins, flow_of(begin, 2));
  }

  /// All replicas send, receive and add at once, each on its core.
  void sum_on_their_cores(int64_t stage, double seconds) {
    const int64_t begin = first_rank_[stage], end = begin + timeline_.shape().replicas[stage];
    std::vector<int32_t> links = {static_cast<int32_t>(begin)};
    std::vector<double> weights = {1};
    for (int64_t rank = begin; rank < end; ++rank) {
      const int32_t host = cores_of(rank);
      const auto known = std::find(links.begin() + 1, links.end(), host);
      if (known != links.end()) {
        ++weights[static_cast<size_t>(known - links.begin())];
        continue;
      }
      links.push_back(host);
      weights.push_back(1);
    }
    cores_->add(sum_on_cores(stage), links, seconds, now_, weights);
  }

  const Action& current(int64_t rank) const { return timeline_.lists()[rank][ranks_[rank].position]; }

  void finish_reduce(int64_t stage) {
    const int64_t begin = first_rank_[stage], end = begin + timeline_.shape().replicas[stage];
    reduces_[stage].arrived = 0;
    for (int64_t rank = begin; rank < end; ++rank)
      timeline_.reduced(rank, current(rank), ranks_[rank].since, reduces_[stage].begin, now_);
    for (int64_t rank = begin; rank < end; ++rank) {
      ++ranks_[rank].position;
      advance(rank);
    }
  }

  // --- copies of tied parameters ---

  bool waits_to_update(int64_t rank) {
    const Meetings::Reached reached = meetings_.reach_update(rank);
    if (reached == Meetings::Reached::kAllAreThere) {
      const int64_t meeting = meetings_.of_rank(rank);
      push(now_ + timeline_.meeting_seconds(meetings_.stages(meeting)), kMet, meeting);
    }
    return reached != Meetings::Reached::kGoesOn;
  }

  void finish_meeting(int64_t meeting) {
    for (const int64_t rank : meetings_.ranks(meeting)) {
      timeline_.waited_to_update(rank, ranks_[rank].since, now_);
      ranks_[rank].since = now_;
      compute(rank, timeline_.computing(rank, timeline_.stage_of(rank, current(rank))).step_seconds);
    }
  }

  Timeline& timeline_;
  const SimulationOptions& options_;
  MessageIndex messages_;
  Meetings meetings_;
  std::vector<Message> message_;
  std::vector<Rank> ranks_;
  std::vector<Reduce> reduces_;
  std::vector<int64_t> first_rank_;
  std::vector<LinkTree::Exchange> exchanges_;  // by stage, where known
  std::vector<StageTurns> turns_;
  std::unique_ptr<LinkTree> tree_;
  std::unique_ptr<FairNetwork> network_;
  std::unique_ptr<FairNetwork> cores_;  // where they are too few: seconds of work instead of bytes
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
  int64_t order_ = 0;
  double now_ = 0;
  bool begun_ = false;
};

void run_events(Timeline& timeline, const SimulationOptions& options) { Events(timeline, options).run(); }

EventRun::EventRun(Timeline& timeline, const SimulationOptions& options)
    : events_(std::make_unique<Events>(timeline, options)) {}
EventRun::~EventRun() = default;
void EventRun::run_until(int64_t completed) { events_->run_until(completed); }
bool EventRun::state(RunState* state) const { return events_->state(state); }
double EventRun::now() const { return events_->now(); }

}  // namespace pipewright
