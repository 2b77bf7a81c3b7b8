// Pipelines of the reference that meet in pairs at any time ("adpsgd"): as a run has written it down.
#pragma once

#include <vector>

#include "runtime/groups/group_log.h"
#include "runtime/serial/serial_ties.h"

namespace pipewright {

class SerialMeetings : public SerialTies {
 public:
  explicit SerialMeetings(MeetingsBySpan meetings) : meetings_(std::move(meetings)) {}

  /// InputError if a meeting of the span is not one of these pipelines and stages.
  void begin(SerialPipelines& pipelines, Span span) override;
  void updated(SerialPipelines& pipelines, size_t pipeline, size_t s) override;
  /// InputError if the updates end before the meetings do.
  void end(SerialPipelines& pipelines) override;

 private:
  struct PipelineNow {
    Tensors published, met;               ///< trained weights
    bool has_met = false;                 ///< since they were published
    int64_t passed = 0;                   ///< updates of the span that are what they will be
    std::vector<WeightMeeting> meetings;  ///< its own, in its order
    size_t next = 0;                      ///< of those
    const WeightMeeting* asks =
        nullptr;  ///< of an active one: has published for it, and not added what it changed
  };
  using StageNow = std::vector<PipelineNow>;  ///< by pipeline

  void settle(SerialPipelines& pipelines, size_t s);
  bool pass(SerialStage& stage, PipelineNow& now, bool active);
  bool meet(StageNow& stage, PipelineNow& active);

  const MeetingsBySpan meetings_;
  std::vector<StageNow> stages_;
};

}  // namespace pipewright
