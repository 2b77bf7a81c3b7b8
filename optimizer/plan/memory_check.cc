#include "optimizer/plan/memory_check.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/cost/cost_model.h"

namespace pipewright {
namespace {

std::string text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

std::map<int64_t, StageMemory> memory_by_rank(const Plan& plan, const Prediction& prediction) {
  std::map<int64_t, StageMemory> by_rank;
  for (size_t s = 0; s < prediction.stages.size(); ++s)
    for (const int64_t rank : plan.stages[s].ranks) by_rank[rank] += prediction.stages[s].memory;
  return by_rank;
}

std::vector<MemoryDeficit> memory_deficits(const Plan& plan, const Prediction& prediction,
                                           const Prediction& recomputing, const Topology& topology) {
  const auto limit_of = [&](int64_t rank) {
    int64_t limit = topology.memory_bytes;
    if (const auto device = static_cast<size_t>(rank); device < topology.devices.size()) {
      const int64_t own = topology.devices[device].memory_bytes;
      if (own > 0 && (limit == 0 || own < limit)) limit = own;
    }
    return limit;
  };
  std::map<int64_t, StageMemory> by_rank = memory_by_rank(plan, prediction);
  std::map<int64_t, StageMemory> recomputing_by_rank = memory_by_rank(plan, recomputing);
  std::vector<MemoryDeficit> deficits;
  std::vector<char> seen(static_cast<size_t>(plan.world_size), 0);
  for (size_t s = 0; s < prediction.stages.size(); ++s) {
    for (const int64_t rank : plan.stages[s].ranks) {
      const int64_t limit = limit_of(rank);
      if (seen[static_cast<size_t>(rank)] != 0 || limit == 0 || by_rank[rank].total_bytes() <= limit)
        continue;
      for (const int64_t other : plan.stages[s].ranks) seen[static_cast<size_t>(other)] = 1;
      deficits.push_back(
          {static_cast<int64_t>(s), rank, by_rank[rank], recomputing_by_rank[rank].total_bytes(), limit});
      break;
    }
  }
  return deficits;
}

std::string memory_text(int64_t common_bytes, const std::vector<int64_t>& own_bytes) {
  int64_t least = common_bytes, most = common_bytes;
  bool all = true;
  for (const int64_t bytes : own_bytes) {
    least = tighter_limit(least, bytes);
    most = std::max(most, bytes);
    all = all && bytes > 0;
  }
  if (!all) return text(least) + " or more";
  return least == most ? text(least) : text(least) + " to " + text(most);
}

std::string memory_by_purpose(const StageMemory& memory) {
  return "weights " + text(memory.weights_bytes) + ", further versions " + text(memory.versions_bytes) +
         ", gradients " + text(memory.gradients_bytes) + ", optimizer " + text(memory.optimizer_bytes) +
         ", activations " + text(memory.activations_bytes) + ", messages " + text(memory.messages_bytes) +
         ", workspace " + text(memory.workspace_bytes);
}

std::string memory_cures(const StageMemory& memory, int64_t in_flight, int64_t limit_bytes,
                         int64_t minibatch_samples) {
  const int64_t lacking = memory.total_bytes() - limit_bytes;
  // Rounded up, or what it names would not do.
  constexpr int64_t kMebibyte = int64_t{1} << 20;
  const int64_t enough = memory.total_bytes();
  std::string cures =
      "Cures: --memory " +
      (enough < 64 * kMebibyte ? std::to_string(enough) + "B"
                               : std::to_string((enough + kMebibyte - 1) / kMebibyte) + "MiB") +
      " or more; more devices (--gpus)";
  // What there is for each minibatch in flight.
  const int64_t each = (memory.versions_bytes + memory.activations_bytes) / std::max<int64_t>(in_flight, 1);
  if (each > 0 && in_flight > 1) {
    const int64_t fewer = (lacking + each - 1) / each;
    if (fewer < in_flight)
      cures +=
          "; in_flight " + std::to_string(in_flight - fewer) + " instead of " + std::to_string(in_flight);
  }
  const int64_t grows = memory.activations_bytes + memory.messages_bytes + memory.workspace_bytes;
  const int64_t room = grows - lacking;
  if (room > 0 && minibatch_samples > 1) {
    const auto samples = static_cast<int64_t>(static_cast<double>(minibatch_samples) *
                                              static_cast<double>(room) / static_cast<double>(grows));
    if (samples >= 1)
      cures += "; a profile of " + std::to_string(samples) + " samples a minibatch instead of " +
               std::to_string(minibatch_samples);
  }
  return cures + ".";
}

void check_plan_memory(const Plan& plan, const Prediction& prediction, const Prediction& recomputing,
                       const Topology& topology, int64_t minibatch_samples) {
  const std::vector<MemoryDeficit> deficits = memory_deficits(plan, prediction, recomputing, topology);
  if (deficits.empty()) return;
  std::string what = "plan: ";
  const MemoryDeficit* worst = &deficits.front();
  for (const MemoryDeficit& deficit : deficits) {
    if (&deficit != &deficits.front()) what += "; ";
    const int64_t depth = plan.stages[static_cast<size_t>(deficit.stage)].in_flight;
    what += "stage " + std::to_string(deficit.stage) + " needs " + text(deficit.memory.total_bytes()) +
            " on each rank at depth " + std::to_string(depth) + "; the limit is " +
            text(deficit.limit_bytes) + ", " + std::to_string(deficit.lacking_bytes()) + " bytes less";
    if (deficit.lacking_bytes() > worst->lacking_bytes()) worst = &deficit;
  }
  const Stage& stage = plan.stages[static_cast<size_t>(worst->stage)];
  std::string recompute;
  if (worst->recomputing_bytes < worst->memory.total_bytes()) {
    recompute = " With \"recompute\": true it needs " + text(worst->recomputing_bytes) +
                (worst->recomputing_bytes <= worst->limit_bytes ? ", which fits." : ".");
  }
  throw InfeasibleError(
      what, "Stage " + std::to_string(worst->stage) + ": " + memory_by_purpose(worst->memory) + ". " +
                memory_cures(worst->memory, stage.in_flight, worst->limit_bytes, minibatch_samples) +
                recompute);
}

}  // namespace pipewright
