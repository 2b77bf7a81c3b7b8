#include "runtime/schedule/schedule.h"

#include "graph/error.h"
#include "graph/plan.h"
#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {

namespace {

std::vector<int64_t> one_in_flight(const PipelineShape& shape) {
  return std::vector<int64_t>(shape.replicas.size(), 1);
}

// Every kind has its functions: the compiler warns of one that is missing.
ScheduleRow row_of(const ScheduleFacts& facts) {
  switch (facts.kind) {
    case ScheduleKind::k1F1B:
      return {facts, one_f_one_b, usable_in_flight};
    case ScheduleKind::kModelParallel:
      return {facts, model_parallel, one_in_flight};
    case ScheduleKind::kGpipe:
      return {facts, gpipe, gpipe_depths};
    case ScheduleKind::k1F1BFlush:
      return {facts, one_f_one_b_flush, one_f_one_b_flush_depths};
    case ScheduleKind::kInterleaved:
      return {facts, interleaved, interleaved_depths};
    case ScheduleKind::kZbH1:
      return {facts, zb_h1, zb_h1_depths};
    case ScheduleKind::kZbV:
      return {facts, zb_v, zb_v_depths};
    case ScheduleKind::kDualPipeV:
      return {facts, dual_pipe_v, dual_pipe_v_depths};
    case ScheduleKind::kCustom:
      return {facts, custom, custom_depths};
    case ScheduleKind::kForward:
      break;
  }
  return {facts, forward_only, one_in_flight};
}

/// The stages that are trained, without those before them: what their order and depths follow from.
PipelineShape trained_part(const PipelineShape& shape) {
  PipelineShape part = shape;
  const auto behind = [&](auto& by_stage) {
    if (!by_stage.empty()) by_stage.erase(by_stage.begin(), by_stage.begin() + shape.frozen_stages);
  };
  behind(part.replicas);
  behind(part.in_flight);
  behind(part.shares);
  behind(part.split);
  part.frozen_stages = 0;
  part.tied.clear();  // of no influence on order and depths
  part.rank_numbers.clear();
  return part;
}

/// Replica q of each stage gets the same minibatches, so that each replica is a pipeline for itself.
void check_equal_pipelines(const std::string& name, const PipelineShape& shape) {
  for (int64_t stage = 1; stage < shape.stages(); ++stage) {
    const bool shares = !shape.shares.empty() && shape.shares[static_cast<size_t>(stage)] != shape.shares[0];
    if (shape.replicas[static_cast<size_t>(stage)] == shape.replicas[0] && !shares) continue;
    throw PlanError("pipeline, stage " + std::to_string(stage) +
                        ": other replicas or shares than stage 0, which schedule '" + name + "' has not",
                    "give all stages as many replicas, or use schedule 'interleaved'");
  }
}

}  // namespace

std::vector<Action> ScheduleRow::make(const PipelineShape& shape, int64_t stage, int64_t replica,
                                      Span span) const {
  if (shape.frozen_stages == 0 || !trains()) return make_trained(shape, stage, replica, span);
  if (!shape.trains(stage)) return asynchronous_order(StageTurns(shape, stage), replica, 0, span);
  return make_trained(trained_part(shape), stage - shape.frozen_stages, replica, span);
}

std::vector<int64_t> ScheduleRow::depths(const PipelineShape& shape) const {
  if (shape.frozen_stages == 0) return trained_depths(shape);
  std::vector<int64_t> depths(static_cast<size_t>(shape.frozen_stages), 1);
  const std::vector<int64_t> trained = trained_depths(trained_part(shape));
  depths.insert(depths.end(), trained.begin(), trained.end());
  return depths;
}

const std::vector<ScheduleRow>& schedules() {
  static const std::vector<ScheduleRow> rows = [] {
    std::vector<ScheduleRow> all;
    for (const ScheduleFacts& facts : schedule_table()) all.push_back(row_of(facts));
    return all;
  }();
  return rows;
}

const ScheduleRow& schedule_named(const std::string& name) {
  return schedules()[static_cast<size_t>(&schedule_facts(name) - schedule_table().data())];
}

void check_schedule_shape(const std::string& name, const PipelineShape& shape) {
  const ScheduleRow& row = schedule_named(name);
  check_shape(shape);
  if (shape.stages_per_rank > 1 && !row.several_stages)
    throw PlanError("pipeline: schedule '" + name + "' runs one stage on a rank, got " +
                        std::to_string(shape.stages_per_rank),
                    "use schedule 'interleaved'");
  if (row.trains() && row.kind != ScheduleKind::kCustom && row.v_shaped != shape.v_shaped)
    throw PlanError("pipeline: schedule '" + name + "' " +
                        (row.v_shaped ? "has stages s and 2p - 1 - s of 2p on a rank, got others"
                                      : "is not V-shaped, and stages s and 2p - 1 - s are on one rank"),
                    row.v_shaped ? "give stage 2p - 1 - s the ranks of stage s"
                                 : "give stage s the ranks of stage s mod p, or use 'zbv' or 'dualpipev'");
  PW_CHECK(row.trains() || !shape.any_splits(), "whole minibatches are evaluated: evaluation_shape()");
  if (!row.trains()) return;
  if (shape.stages_per_rank > 1 && shape.frozen_stages > 0)
    throw PlanError(
        "pipeline: schedule '" + name + "' has no frozen stages, got " + std::to_string(shape.frozen_stages),
        "leave `frozen` out of its stages: frozen layers cost their forward alone there too");
  Plan plan;  // the table of what goes together is with the plan
  plan.schedule = name;
  plan.weights = to_text(shape.weights);
  check_schedule_and_weights(plan);
  if (row.v_shaped) check_equal_pipelines(name, shape);
  if (row.kind == ScheduleKind::kCustom) check_custom_order(shape);
  const std::vector<int64_t> depths = row.depths(shape);
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    if (depths[stage] > shape.in_flight[stage])
      throw PlanError("pipeline, stage " + std::to_string(stage) + ": schedule '" + name + "' keeps " +
                          std::to_string(depths[stage]) + " of " + std::to_string(shape.microbatches) +
                          " microbatches in flight on a rank, in_flight is " +
                          std::to_string(shape.in_flight[stage]),
                      "set its in_flight to " + std::to_string(depths[stage]) +
                          ", or fewer microbatches, or use schedule '1f1b-flush'");
  if (facts_of(shape.weights).lag != WeightLag::kInterval) return;
  const int64_t first = shape.frozen_stages;
  const int64_t least = StageTurns(shape, first).run_ahead(depths[first]);
  if (shape.microbatches < least)
    throw PlanError("pipeline: " + std::to_string(shape.microbatches) +
                        " microbatches an update with weights '" + to_text(shape.weights) +
                        "', expected at least " + std::to_string(least) + ": stage " + std::to_string(first) +
                        " runs so many ahead of its backwards",
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
