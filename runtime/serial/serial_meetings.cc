#include "runtime/serial/serial_meetings.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>

#include "graph/error.h"

namespace pipewright {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw InputError(what, "Do the meetings belong to another run?");
}

void publish(const SerialStage& stage, Tensors& published, Tensors& met) {
  published = met = stage.trained();
}

void add_change(SerialStage& stage, const Tensors& published, const Tensors& met) {
  Tensors weights = stage.trained();
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = weights[i] + (met[i] - published[i]);
  stage.set_trained(weights);
}

}  // namespace

void SerialMeetings::begin(SerialPipelines& pipelines, Span span) {
  const size_t stages = pipelines[0]->stage_count();
  stages_.assign(stages, StageNow(pipelines.size()));
  for (size_t s = 0; s < stages; ++s)
    for (size_t p = 0; p < pipelines.size(); ++p)
      publish(pipelines[p]->stage(s), stages_[s][p].published, stages_[s][p].met);
  const auto found = meetings_.find(span.first);
  if (found == meetings_.end()) return;
  if (found->second.size() > stages) refuse("a meeting at stage " + std::to_string(found->second.size() - 1));
  for (size_t s = 0; s < found->second.size(); ++s) {
    for (const WeightMeeting& meeting : found->second[s]) {
      for (const int64_t p : {meeting.active, meeting.passive}) {
        if (p >= static_cast<int64_t>(pipelines.size()))
          refuse("pipeline " + std::to_string(p) + " meets another one at stage " + std::to_string(s));
        stages_[s][static_cast<size_t>(p)].meetings.push_back(meeting);
      }
    }
    for (size_t p = 0; p < pipelines.size(); ++p) {
      const bool active = MeetingPartners::is_active(static_cast<int64_t>(p));
      auto& own = stages_[s][p].meetings;
      std::sort(own.begin(), own.end(), [&](const WeightMeeting& a, const WeightMeeting& b) {
        return active ? a.published < b.published : a.turn < b.turn;
      });
    }
  }
}

void SerialMeetings::updated(SerialPipelines& pipelines, size_t pipeline, size_t s) {
  pipelines[pipeline]->stage(s).awaits_group = true;
  settle(pipelines, s);
}

void SerialMeetings::end(SerialPipelines& pipelines) {
  const at::NoGradGuard no_grad;
  for (size_t s = 0; s < stages_.size(); ++s) {
    for (size_t p = 0; p < pipelines.size(); ++p) {
      PipelineNow& now = stages_[s][p];
      const bool left = now.asks && (!now.has_met || now.asks->added != now.passed + 1);
      if (left || now.next < now.meetings.size())
        refuse("pipeline " + std::to_string(p) + " ends before its meetings at stage " + std::to_string(s));
      if (now.has_met) add_change(pipelines[p]->stage(s), now.published, now.met);
    }
  }
}

// Whatever can happen at a stage by now.
void SerialMeetings::settle(SerialPipelines& pipelines, size_t s) {
  const at::NoGradGuard no_grad;
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t p = 0; p < pipelines.size(); ++p) {
      SerialStage& stage = pipelines[p]->stage(s);
      PipelineNow& now = stages_[s][p];
      const bool active = MeetingPartners::is_active(static_cast<int64_t>(p));
      if (stage.awaits_group && pass(stage, now, active)) moves = true;
      if (now.asks && !now.has_met && meet(stages_[s], now)) moves = true;
    }
  }
}

// The latest update becomes what it will be, unless a meeting before it is still to come.
bool SerialMeetings::pass(SerialStage& stage, PipelineNow& now, bool active) {
  const int64_t update = now.passed + 1;
  const WeightMeeting* next = now.next < now.meetings.size() ? &now.meetings[now.next] : nullptr;
  if (active) {
    const bool adds = now.asks && now.asks->added == update;
    if (adds && !now.has_met) return false;
    if (adds) {
      add_change(stage, now.published, now.met);
      now.asks = nullptr;
      now.has_met = false;
    }
    if (next && next->published == update) {
      if (now.asks) refuse("a pipeline asks twice after update " + std::to_string(update));
      now.asks = next;
      ++now.next;
      publish(stage, now.published, now.met);
    }
  } else {
    if (next && next->met < update) return false;
    if (now.has_met) add_change(stage, now.published, now.met);
    now.has_met = false;
    publish(stage, now.published, now.met);
  }
  now.passed = update;
  stage.awaits_group = false;
  return true;
}

// What an active one asks for, if it is the passive one's turn.
bool SerialMeetings::meet(StageNow& stage, PipelineNow& active) {
  PipelineNow& passive = stage[static_cast<size_t>(active.asks->passive)];
  if (passive.next == passive.meetings.size()) return false;
  const WeightMeeting& meeting = passive.meetings[passive.next];
  if (!(meeting == *active.asks) || meeting.met != passive.passed) return false;
  for (size_t i = 0; i < active.met.size(); ++i)
    active.met[i] = passive.met[i] = (active.published[i] + passive.met[i]) / 2.0;
  active.has_met = passive.has_met = true;
  ++passive.next;
  return true;
}

}  // namespace pipewright
