#include "runtime/schedule/schedule.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "graph/nearest.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {

int64_t PipelineShape::ranks() const { return std::accumulate(replicas.begin(), replicas.end(), int64_t{0}); }

void check_shape(const PipelineShape& shape) {
  if (shape.replicas.empty()) throw PlanError("pipeline: no stages, expected at least 1");
  if (shape.in_flight.size() != shape.replicas.size())
    throw PlanError("pipeline: " + std::to_string(shape.in_flight.size()) + " in-flight depths for " +
                    std::to_string(shape.replicas.size()) + " stages, expected one each");
  for (size_t stage = 0; stage < shape.replicas.size(); ++stage) {
    const std::string where = "pipeline, stage " + std::to_string(stage) + ": ";
    if (shape.replicas[stage] < 1)
      throw PlanError(where + std::to_string(shape.replicas[stage]) + " replicas, expected at least 1");
    if (shape.in_flight[stage] < 1)
      throw PlanError(where + "in-flight depth " + std::to_string(shape.in_flight[stage]) +
                      ", expected at least 1");
  }
}

std::vector<int64_t> usable_in_flight(const PipelineShape& shape) {
  // Far beyond any span, small enough that the products below do not overflow.
  constexpr int64_t kUnlimited = int64_t{1} << 31;
  std::vector<int64_t> depths(shape.replicas.size());
  int64_t ahead = kUnlimited * shape.replicas.at(0);
  for (size_t stage = 0; stage < depths.size(); ++stage) {
    const int64_t warm_up = std::min(shape.in_flight.at(stage) - 1, ahead / shape.replicas[stage]);
    depths[stage] = 1 + warm_up;
    ahead = warm_up * shape.replicas[stage];
  }
  return depths;
}

std::vector<int64_t> pipedream_in_flight(const std::vector<int64_t>& replicas) {
  std::vector<int64_t> depths(replicas.size());
  int64_t ranks = 0;
  for (size_t stage = replicas.size(); stage-- > 0;) {
    ranks += replicas[stage];
    depths[stage] = (ranks + replicas[stage] - 1) / replicas[stage];
  }
  return depths;
}

const std::vector<ScheduleRow>& schedules() {
  static const std::vector<ScheduleRow> rows = {
      {"1f1b", one_f_one_b, true,
       "asynchronous: one forward, one backward in turn, round robin over replicas"},
      {"model-parallel", model_parallel, true, "one minibatch in flight for each replica of the first stage"},
      {"forward", forward_only, false, "forward only: evaluation and prediction"},
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

std::vector<Action> schedule_of_rank(const std::string& name, const PipelineShape& shape, int64_t stage,
                                     int64_t replica, Span span) {
  const ScheduleRow& row = schedule_named(name);
  check_shape(shape);
  if (span.first < 0 || span.count < 0)
    throw PlanError("span of " + std::to_string(span.count) + " minibatches from minibatch " +
                    std::to_string(span.first) + ", expected neither to be negative");
  PW_CHECK(stage >= 0 && stage < shape.stages(), "stage " << stage << " of " << shape.stages());
  PW_CHECK(replica >= 0 && replica < shape.replicas[stage],
           "replica " << replica << " of " << shape.replicas[stage]);
  return lower(row.make(shape, stage, replica, span), shape, stage);
}

std::vector<std::vector<Action>> schedule_of_all(const std::string& name, const PipelineShape& shape,
                                                 Span span) {
  check_shape(shape);
  std::vector<std::vector<Action>> lists;
  for (const Placement& placement : placements(shape))
    lists.push_back(schedule_of_rank(name, shape, placement.stage, placement.replica, span));
  return lists;
}

Rounds rounds_of(int64_t replicas, Span span) {
  const int64_t first = span.first / replicas;
  return {first, span.count == 0 ? 0 : (span.end() - 1) / replicas + 1 - first};
}

int64_t round_size(int64_t round, int64_t replicas, Span span) {
  const int64_t begin = std::max(span.first, round * replicas);
  const int64_t end = std::min(span.end(), (round + 1) * replicas);
  return std::max<int64_t>(0, end - begin);
}

std::vector<Placement> placements(const PipelineShape& shape) {
  std::vector<Placement> all;
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    for (int64_t replica = 0; replica < shape.replicas[stage]; ++replica) all.push_back({stage, replica});
  return all;
}

std::string rank_label(int64_t rank, const Placement& placement) {
  return "rank " + std::to_string(rank) + "  stage " + std::to_string(placement.stage) + " replica " +
         std::to_string(placement.replica);
}

}  // namespace pipewright
