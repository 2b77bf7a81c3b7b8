#include <algorithm>

#include "runtime/schedule/timeline.h"

namespace pipewright {

void run_sweep(Timeline& timeline, bool blocking_transfers) {
  struct Clock {
    double now = 0;
    double activations_free = 0, gradients_free = 0;  // when the outgoing link is free
  };
  std::vector<Clock> clocks(timeline.lists().size());
  std::vector<double> arrival(MessageIndex(timeline.shape(), timeline.span()).count(), 0);

  const auto receive = [&](int64_t rank, const Action& action, int64_t stage, MessageRange messages) {
    Clock& clock = clocks[rank];
    double arrived = 0;  // all parts
    for (size_t message = messages.first; message < messages.first + messages.count; ++message)
      arrived = std::max(arrived, arrival[message]);
    double end = std::max(clock.now, arrived);
    if (blocking_transfers) {
      const double transfer = action.kind == ActionKind::kReceiveGradient
                                  ? timeline.times_of(stage + 1).send_gradient_seconds
                                  : timeline.times_of(stage - 1).send_activation_seconds;
      end = std::max(clock.now + transfer, arrived);
    }
    timeline.received(rank, action, clock.now, end);
    clock.now = end;
  };
  const auto send = [&](int64_t rank, const Action& action, int64_t stage, size_t message) {
    Clock& clock = clocks[rank];
    const bool gradient = action.kind == ActionKind::kSendGradient;
    const StageTimes& times = timeline.times_of(stage);
    double& link_free = gradient ? clock.gradients_free : clock.activations_free;
    const double start = std::max(clock.now, link_free);
    link_free = start +
                timeline.part_of(rank, stage) *
                    (gradient ? times.send_gradient_seconds : times.send_activation_seconds) +
                timeline.message_seconds(rank, action, stage);
    arrival[message] = link_free;
    timeline.sent(rank, action, start, link_free);
    if (!blocking_transfers) return;
    timeline.waited_to_send(rank, clock.now, link_free);
    clock.now = link_free;
  };
  const auto ran = [&](int64_t rank, size_t position, MessageRange messages) {
    const Action& action = timeline.lists()[rank][position];
    const int64_t stage = timeline.stage_of(rank, action);
    switch (action.kind) {
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient:
        return receive(rank, action, stage, messages);
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        return send(rank, action, stage, messages.first);
      default:
        break;
    }
    Clock& clock = clocks[rank];
    const double end = clock.now + timeline.seconds_of(rank, action, stage, clock.now);
    timeline.computed(rank, action, stage, clock.now, end);
    clock.now = end;
  };
  const auto reduced = [&](int64_t first_rank, const Action& action) {
    const int64_t stage = timeline.stage_of(first_rank, action);
    const int64_t end_rank = first_rank + timeline.shape().replicas[stage];
    double last = 0;
    for (int64_t rank = first_rank; rank < end_rank; ++rank) last = std::max(last, clocks[rank].now);
    const double end = last + timeline.times_of(stage).reduce_seconds;
    for (int64_t rank = first_rank; rank < end_rank; ++rank) {
      timeline.reduced(rank, action, clocks[rank].now, last, end);
      clocks[rank].now = end;
    }
  };
  const auto met = [&](const Meetings& meetings, int64_t meeting) {
    double last = 0;
    for (const int64_t rank : meetings.ranks(meeting)) last = std::max(last, clocks[rank].now);
    const double end = last + timeline.meeting_seconds(meetings.stages(meeting));
    for (const int64_t rank : meetings.ranks(meeting)) {
      timeline.waited_to_update(rank, clocks[rank].now, end);
      clocks[rank].now = end;
    }
  };
  timeline.check_done(dry_run(timeline.lists(), timeline.shape(), timeline.span(), ran, reduced, met));
}

}  // namespace pipewright
