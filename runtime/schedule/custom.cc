// The order that a plan lists: what each rank does between two updates, microbatch by microbatch, as somebody
// else has found it (torch_csv.h). It is the same for every update.
#include <algorithm>
#include <map>

#include "graph/error.h"
#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {
namespace {

/// A stage's backward comes in two parts at all stages or at none, so a whole one becomes both.
std::vector<Action> custom_list(const PipelineShape& shape, int64_t group, int64_t) {
  PW_CHECK_LT(group, std::ssize(shape.order));
  const bool splits = std::any_of(shape.order.begin(), shape.order.end(), [](const std::string& actions) {
    return actions.find("BI") != std::string::npos;
  });
  std::vector<Action> list;
  for (const Action& action : parse_actions(shape.order[static_cast<size_t>(group)])) {
    if (splits && action.kind == ActionKind::kBackward) {
      list.push_back({ActionKind::kBackwardInput, action.index, action.stage});
      list.push_back({ActionKind::kBackwardWeight, action.index, action.stage});
    } else {
      list.push_back(action);
    }
  }
  return list;
}

/// What the list of a rank has to have of each of its stages: microbatches 0, 1, ... forward, and backward.
class CustomListCheck {
 public:
  CustomListCheck(const PipelineShape& shape, int64_t group)
      : shape_(shape), group_(group), where_("plan: order[" + std::to_string(group) + "]") {
    for (int64_t stage = group; stage < shape.stages(); stage = shape.next_of_group(stage)) done_[stage];
  }

  void add(const Action& action) {
    const auto stage = done_.find(action.stage_or(group_));
    if (stage == done_.end() || (action.stage == Action::kOnlyStage) != (shape_.stages_per_rank == 1))
      fail(action, shape_.stages_per_rank == 1 ? "expected no stage before it: the rank has one"
                                               : "expected one of the rank's stages before it");
    Done& done = stage->second;
    switch (action.kind) {
      case ActionKind::kForward:
        return expect(action, done.forwards++);
      case ActionKind::kBackwardInput:
        return expect(action, done.inputs++);
      case ActionKind::kBackward:
        expect(action, done.inputs++);
        return expect(action, done.weights++);
      case ActionKind::kBackwardWeight:
        if (done.weights == done.inputs) fail(action, "its BI comes later, or never");
        return expect(action, done.weights++);
      default:
        fail(action, "expected F, B, BI or BW; messages and updates follow from these");
    }
  }

  void end() const {
    for (const auto& [stage, done] : done_) {
      const int64_t all = shape_.microbatches;
      if (done.forwards == all && done.inputs == all && done.weights == all) continue;
      throw PlanError(where_ + ": stage " + std::to_string(stage) + " runs " + std::to_string(done.forwards) +
                          " forwards, " + std::to_string(done.inputs) +
                          " backwards and the weights' part of " + std::to_string(done.weights) +
                          ", expected " + std::to_string(all) + " each",
                      "Each stage runs every microbatch once; `microbatches` says how many there are.");
    }
  }

 private:
  /// How many microbatches are: forward, backward as far as the stage's inputs, all of it.
  struct Done {
    int64_t forwards = 0, inputs = 0, weights = 0;
  };

  void expect(const Action& action, int64_t microbatch) const {
    if (action.index != microbatch)
      fail(action, "expected microbatch " + std::to_string(microbatch) + " next");
  }
  [[noreturn]] void fail(const Action& action, const std::string& what) const {
    throw PlanError(
        where_ + ", '" + to_text(action) + "': " + what,
        "A rank's order has F and B, or BI and BW, of each of its stages, each for microbatches 0, "
        "1, ... in this order.");
  }

  const PipelineShape& shape_;
  int64_t group_;
  std::string where_;
  std::map<int64_t, Done> done_;  // by stage
};

}  // namespace

void check_custom_order(const PipelineShape& shape) {
  if (static_cast<int64_t>(shape.order.size()) != shape.groups())
    throw PlanError("plan: order has " + std::to_string(shape.order.size()) + " lists, expected " +
                    std::to_string(shape.groups()) + ": one for each stage that has ranks of its own");
  if (shape.frozen_stages > 0)
    throw PlanError("pipeline: schedule 'custom' lists backwards of every stage, got frozen ones",
                    "leave `frozen` out of its stages");
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    if (shape.replicas[static_cast<size_t>(stage)] != 1)
      throw PlanError("pipeline, stage " + std::to_string(stage) + ": " +
                          std::to_string(shape.replicas[static_cast<size_t>(stage)]) +
                          " replicas, and schedule 'custom' lists the order of one",
                      "give it one rank");
  for (int64_t group = 0; group < shape.groups(); ++group) {
    CustomListCheck check(shape, group);
    std::vector<Action> list;
    try {
      list = parse_actions(shape.order[static_cast<size_t>(group)]);
    } catch (const InputError& error) {
      throw PlanError("plan: order[" + std::to_string(group) + "]: " + error.what(), error.remedy());
    }
    for (const Action& action : list) check.add(action);
    check.end();
  }
}

std::vector<Action> custom(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  return listed_order(custom_list, shape, stage, replica, span);
}

std::vector<int64_t> custom_depths(const PipelineShape& shape) { return listed_depths(custom_list, shape); }

}  // namespace pipewright
