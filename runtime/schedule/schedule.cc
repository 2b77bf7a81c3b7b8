#include "runtime/schedule/schedule.h"

#include "graph/error.h"
#include "graph/nearest.h"
#include "graph/plan.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {

namespace {

std::vector<int64_t> one_in_flight(const PipelineShape& shape) {
  return std::vector<int64_t>(shape.replicas.size(), 1);
}

}  // namespace

const std::vector<ScheduleRow>& schedules() {
  static const std::vector<ScheduleRow> rows = {
      {"1f1b", one_f_one_b, true, usable_in_flight, false,
       "asynchronous: one forward, one backward in turn, round robin over replicas"},
      {"model-parallel", model_parallel, true, one_in_flight, false,
       "one minibatch in flight for each replica of the first stage"},
      {"gpipe", gpipe, true, gpipe_depths, false, "all forwards of an update, then all its backwards"},
      {"1f1b-flush", one_f_one_b_flush, true, one_f_one_b_flush_depths, false,
       "one forward, one backward in turn, drained before each update"},
      {"interleaved", interleaved, true, interleaved_depths, true,
       "1f1b-flush with several stages on each rank: shorter fill and drain"},
      {"zb-h1", zb_h1, true, zb_h1_depths, false,
       "1f1b-flush with the backward in two parts: most of the fill and drain is used"},
      {"forward", forward_only, false, one_in_flight, true, "forward only: evaluation and prediction"},
  };
  return rows;
}

const ScheduleRow& schedule_named(const std::string& name) {
  std::vector<std::string> known;
  for (const ScheduleRow& row : schedules()) {
    if (name == row.name) return row;
    known.push_back(row.name);
  }
  throw InputError("schedule '" + name + "' is not known" + suggestion(name, known));
}

void check_schedule_shape(const std::string& name, const PipelineShape& shape) {
  const ScheduleRow& row = schedule_named(name);
  check_shape(shape);
  if (shape.stages_per_rank > 1 && !row.several_stages)
    throw PlanError("pipeline: schedule '" + name + "' runs one stage on a rank, got " +
                        std::to_string(shape.stages_per_rank),
                    "use schedule 'interleaved'");
  if (!row.trains) return;
  Plan plan;  // the table of what goes together is with the plan
  plan.schedule = name;
  plan.weights = to_text(shape.weights);
  check_schedule_and_weights(plan);
  const std::vector<int64_t> depths = row.depths(shape);
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    if (depths[stage] > shape.in_flight[stage])
      throw PlanError("pipeline, stage " + std::to_string(stage) + ": schedule '" + name + "' keeps " +
                          std::to_string(depths[stage]) + " of " + std::to_string(shape.microbatches) +
                          " microbatches in flight on a rank, in_flight is " +
                          std::to_string(shape.in_flight[stage]),
                      "set its in_flight to " + std::to_string(depths[stage]) +
                          ", or fewer microbatches, or use schedule '1f1b-flush'");
  if (shape.weights != WeightRule::kTwoVersions) return;
  const int64_t least = StageTurns(shape, 0).run_ahead(depths[0]);
  if (shape.microbatches < least)
    throw PlanError("pipeline: " + std::to_string(shape.microbatches) +
                        " microbatches an update with weights '2bw', expected at least " +
                        std::to_string(least) + ": stage 0 runs so many ahead of its backwards",
                    "set microbatches to " + std::to_string(least) + " or more, or lower its in_flight");
}

namespace {

std::vector<Action> list_of_rank(const ScheduleRow& row, const PipelineShape& shape, int64_t stage,
                                 int64_t replica, Span span) {
  return lower(row.make(shape, stage, replica, span), shape, stage);
}

void check_span(Span span) {
  if (span.first < 0 || span.count < 0)
    throw PlanError("span of " + std::to_string(span.count) + " minibatches from minibatch " +
                    std::to_string(span.first) + ", expected neither to be negative");
}

}  // namespace

std::vector<Action> schedule_of_rank(const std::string& name, const PipelineShape& shape, int64_t stage,
                                     int64_t replica, Span span) {
  check_schedule_shape(name, shape);
  check_span(span);
  PW_CHECK(stage >= 0 && stage < shape.groups(), "stage " << stage << " of " << shape.groups());
  PW_CHECK(replica >= 0 && replica < shape.replicas[stage],
           "replica " << replica << " of " << shape.replicas[stage]);
  return list_of_rank(schedule_named(name), shape, stage, replica, span);
}

std::vector<std::vector<Action>> schedule_of_all(const std::string& name, const PipelineShape& shape,
                                                 Span span) {
  check_schedule_shape(name, shape);
  check_span(span);
  const ScheduleRow& row = schedule_named(name);
  std::vector<std::vector<Action>> lists;
  for (const Placement& placement : placements(shape))
    lists.push_back(list_of_rank(row, shape, placement.stage, placement.replica, span));
  return lists;
}

}  // namespace pipewright
