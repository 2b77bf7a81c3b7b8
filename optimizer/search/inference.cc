#include "optimizer/search/inference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "graph/error.h"
#include "optimizer/cost/stage_times.h"

namespace pipewright {
namespace {

constexpr double kSameLatency = 1e-9;

struct Suffix {
  double latency = std::numeric_limits<double>::infinity();
  int64_t devices = 0;
  int64_t stages = 0;
  int next = -1;
  int64_t replicas = 0;
};

}  // namespace

InferenceCost inference_cost(const StageLoad& load, const CostInputs& inputs) {
  InferenceCost cost;
  cost.forward_seconds = load.forward_seconds;
  if (!load.first) cost.receive_seconds = message_seconds(static_cast<double>(load.in_bytes), inputs);
  const double send = load.last ? 0 : message_seconds(static_cast<double>(load.out_bytes), inputs);
  cost.link_seconds = std::max(cost.receive_seconds, send);
  cost.memory_bytes = inference_memory_bytes(load);
  return cost;
}

StageMemory inference_memory(const StageLoad& load) {
  StageMemory memory;
  memory.weights_bytes = load.parameter_bytes + load.buffer_bytes;
  memory.messages_bytes = 2 * (load.in_bytes + load.out_bytes);
  memory.workspace_bytes = load.workspace.alone_bytes;
  return memory;
}

int64_t inference_memory_bytes(const StageLoad& load) { return inference_memory(load).total_bytes(); }

std::optional<InferenceSolution> search_inference(const Problem& q, double period_seconds) {
  PW_CHECK(period_seconds > 0, "a period");
  PW_CHECK(!q.inputs.placed(), "on one level of equal devices");
  const States& states = *q.states;
  const int last = states.last();
  const int64_t devices = q.devices;
  // best[i][d]: from state i on, with at most d devices.
  std::vector<std::vector<Suffix>> best(static_cast<size_t>(states.size()),
                                        std::vector<Suffix>(static_cast<size_t>(devices) + 1));
  for (Suffix& end : best[last]) end.latency = 0;
  for (int i = last - 1; i >= 0; --i) {
    for (const int j : states.after(i)) {
      if (q.least_stages > 1 && i == 0 && j == last) continue;
      StageLoad load = load_between(states, i, j);
      if (q.memory_bytes > 0) load.workspace = workspace_between(states, i, j);
      const InferenceCost cost = inference_cost(load, q.inputs);
      if (q.memory_bytes > 0 && cost.memory_bytes > q.memory_bytes) continue;
      const double slower = std::max(cost.forward_seconds, cost.link_seconds);
      const double needed = std::ceil(slower / period_seconds * (1 - kSameLatency));
      if (needed > static_cast<double>(std::min(devices, q.most_replicas))) continue;
      const auto replicas = std::max<int64_t>(1, static_cast<int64_t>(needed));
      for (int64_t d = replicas; d <= devices; ++d) {
        const Suffix& after = best[j][d - replicas];
        if (!std::isfinite(after.latency)) continue;
        Suffix found{cost.forward_seconds + cost.receive_seconds + after.latency, after.devices + replicas,
                     after.stages + 1, j, replicas};
        Suffix& held = best[i][d];
        const bool faster = found.latency < held.latency * (1 - kSameLatency);
        const bool equal = found.latency <= held.latency * (1 + kSameLatency);
        const bool smaller = std::tie(found.devices, found.stages) < std::tie(held.devices, held.stages);
        if (faster || (equal && smaller)) held = found;
      }
    }
  }
  if (!std::isfinite(best[0][devices].latency)) return std::nullopt;
  InferenceSolution found;
  found.latency_seconds = best[0][devices].latency;
  int64_t left = devices;
  for (int i = 0; i != last;) {
    const Suffix& suffix = best[i][left];
    found.solution.stages.push_back({i, suffix.next, suffix.replicas});
    const InferenceCost cost = inference_cost(load_between(states, i, suffix.next), q.inputs);
    found.solution.period_seconds =
        std::max(found.solution.period_seconds,
                 std::max(cost.forward_seconds, cost.link_seconds) / static_cast<double>(suffix.replicas));
    found.solution.devices += suffix.replicas;
    left -= suffix.replicas;
    i = suffix.next;
  }
  return found;
}

}  // namespace pipewright
