#include "optimizer/plan/infeasible.h"

#include <optional>

#include "graph/units.h"
#include "optimizer/cuts/states.h"
#include "optimizer/plan/memory_check.h"

namespace pipewright {
namespace {

std::string replicas_text(const Solution& solution) {
  std::string text;
  for (const FoundStage& stage : solution.stages) {
    text += (text.empty() ? "" : "-") + std::to_string(stage.replicas);
  }
  return text;
}

}  // namespace

void fail_constraints(const Problem& q, const PlanRequest& request, const std::vector<NodeSet>& pinned,
                      const std::string& ties) {
  Problem roomy = q;
  roomy.memory_bytes = 0;
  roomy.inputs.forget_devices();
  if (q.memory_bytes > 0 && search_with_constraints(roomy, request.constraints, pinned)) {
    throw MemoryError("no plan with these constraints on stages fits " +
                          memory_text(q.memory_bytes, q.inputs.memories) + " of memory on each device",
                      "Without --memory there is one; `check --memory` says what each stage lacks.");
  }
  StageConstraints fewer = request.constraints;
  fewer.pins.clear();
  const bool pins = !request.constraints.pins.empty() && search_with_constraints(roomy, fewer, {});
  int64_t replicas = 0;
  for (const auto& [stage, count] : request.constraints.replicas) replicas += count;
  throw InfeasibleError(
      "no plan on " + std::to_string(q.devices) + " devices keeps these constraints on stages",
      pins ? "Without --pin there is one: what a pinned layer needs must be pinned to the "
             "same or an earlier stage" +
                 std::string(ties.empty() ? "." : "; " + ties + ".")
      : replicas > q.devices ? "--replicas asks for " + std::to_string(replicas) + " devices alone."
                             : "Check --replicas and --max-stages against the strategy and each other.");
}

void fail_interleaved(const Problem& q, const std::string& schedule, int64_t stages_per_rank) {
  const std::string each = std::to_string(stages_per_rank) + (stages_per_rank == 1 ? " stage" : " stages");
  const int64_t stages = longest_chain(*q.states);
  const std::string name = "schedule '" + schedule + "' with " + each + " on each rank";
  if (q.devices < 2 || stages < 2 * stages_per_rank)
    throw InfeasibleError(name + ": needs 2 devices and " + std::to_string(2 * stages_per_rank) +
                              " stages or more; got " + std::to_string(q.devices) +
                              (q.devices == 1 ? " device" : " devices") +
                              " and a model that can be cut into " + std::to_string(stages),
                          "Take another --schedule, or fewer --stages-per-rank.");
  throw MemoryError(name + ": found no plan that fits " + memory_text(q.memory_bytes, q.inputs.memories) +
                        " of memory on each of " + std::to_string(q.devices) + " devices",
                    "Stages of one rank share its memory: give more (--memory) or more devices (--gpus), or "
                    "take --recompute always or another --schedule.");
}

void fail_infeasible(const Problem& q, const std::string& strategy, int64_t minibatch_samples,
                     const std::string& ties) {
  const std::string devices = std::to_string(q.devices) + (q.devices == 1 ? " device" : " devices");
  const std::optional<Solution> least = search_least_memory(q);
  if (!least) {
    if (longest_chain(*q.states) < q.least_stages) {
      throw InfeasibleError("strategy '" + strategy + "': the model cannot be cut into " +
                                std::to_string(q.least_stages) + " stages",
                            ties.empty() ? "What it has stays together: use --strategy dp."
                                         : "Use --strategy dp; or, " + ties + ".");
    }
    throw InfeasibleError("strategy '" + strategy + "': impossible on " + devices,
                          q.replicated ? "Two stages of which one has two replicas need 3 devices or more."
                                       : "A pipeline needs 2 devices or more.");
  }
  const FullestStage fullest = fullest_stage(q, *least);
  const StageMemory& memory = fullest.memory;
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  std::string recompute;  // what it would save
  if (q.recompute == Recompute::kNever) {
    Problem other = q;
    other.recompute = Recompute::kWhereNeeded;
    const int64_t needs = fullest_stage(other, *search_least_memory(other)).memory.total_bytes();
    if (needs < memory.total_bytes())
      recompute = " With --recompute auto " +
                  (needs <= q.memory_bytes ? "there is a plan" : text(needs) + " would do") + ".";
  }
  throw MemoryError(
      "strategy '" + strategy + "': no plan for " + devices + " fits " +
          memory_text(q.memory_bytes, q.inputs.memories) + " of memory each; the smallest that fits one is " +
          text(memory.total_bytes()) + " (stage " + std::to_string(fullest.stage) + " of " +
          replicas_text(*least) +
          (least->stages[static_cast<size_t>(fullest.stage)].recompute ? ", recomputing)" : ")"),
      "That stage: " + memory_by_purpose(memory) + "; it lacks " +
          std::to_string(memory.total_bytes() - q.memory_bytes) + " bytes. " +
          memory_cures(memory, fullest.in_flight, q.memory_bytes, minibatch_samples) + recompute,
      memory.total_bytes());
}

}  // namespace pipewright
