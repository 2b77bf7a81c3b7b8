#include "runtime/schedule/kept_memory.h"

#include <algorithm>

#include "runtime/schedule/versions.h"

namespace pipewright {
namespace {

// Devices are of the host that they name; otherwise the innermost of several levels is a host.
std::string host_of(int64_t rank, const Topology& topology) {
  const auto device = static_cast<size_t>(rank);
  if (device < topology.devices.size() && !topology.devices[device].host.empty())
    return topology.devices[device].host;
  return std::to_string(topology.levels.size() > 1 ? rank / topology.levels[0].count : 0);
}

}  // namespace

int64_t most_pending_states(int64_t bytes) {
  constexpr int64_t kPendingBytes = int64_t{256} << 20, kLeast = 4, kMost = 64;
  return std::clamp(kPendingBytes / std::max<int64_t>(1, bytes), kLeast, kMost);
}

int64_t room_for_states(int64_t bytes) { return (2 + most_pending_states(bytes)) * bytes; }

std::vector<KeptOnHost> kept_by_host(const Plan& plan, const Prediction& prediction, const Topology& topology,
                                     bool copies) {
  std::vector<int64_t> by_rank(static_cast<size_t>(plan.world_size), 0);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StageMemory& memory = prediction.stages.at(s).memory;
    const std::vector<int64_t>& ranks = plan.stages[s].ranks;
    by_rank[static_cast<size_t>(ranks.front())] += memory.weights_bytes + memory.optimizer_bytes;
    // In place a checkpoint has versions that the rank itself has not.
    const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
    const int64_t older = older_in_checkpoint(rule.rule, plan.stages[s].in_flight, 0);
    const int64_t versions = rule.in_place ? older * memory.weights_bytes : memory.versions_bytes;
    for (const int64_t rank : ranks)
      by_rank[static_cast<size_t>(rank)] += versions / static_cast<int64_t>(ranks.size());
  }
  std::vector<KeptOnHost> own;
  for (int64_t rank = 0; rank < plan.world_size; ++rank) {
    const std::string name = host_of(rank, topology);
    auto host =
        std::find_if(own.begin(), own.end(), [&](const KeptOnHost& known) { return known.host == name; });
    if (host == own.end()) host = own.insert(own.end(), {name, 0});
    host->bytes += by_rank[static_cast<size_t>(rank)];
  }
  std::vector<KeptOnHost> kept = own;
  if (copies && own.size() > 1)
    for (size_t h = 0; h < own.size(); ++h) kept[(h + 1) % own.size()].bytes += own[h].bytes;
  return kept;
}

}  // namespace pipewright
