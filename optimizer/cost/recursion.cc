#include "optimizer/cost/recursion.h"

#include <algorithm>
#include <map>

#include "graph/error.h"

namespace pipewright {
namespace {

std::map<int64_t, int64_t> ranks_by_server(const Stage& stage, int64_t devices) {
  std::map<int64_t, int64_t> ranks;
  for (const int64_t rank : stage.ranks) ++ranks[rank / devices];
  return ranks;
}

}  // namespace

void check_recursion(const CostInputs& inputs) {
  const bool two = inputs.levels.size() == 2 && !inputs.levels[0].shared && !inputs.levels[1].shared;
  if (two && inputs.speeds.empty() && inputs.memories.empty()) return;
  throw InputError("--objective: 'pipedream' is for one or two levels of separate links and equal devices",
                   "Use --objective pipewright, which prices all topologies.");
}

double recursion_seconds(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages,
                         const CostInputs& inputs) {
  check_recursion(inputs);
  const RecursionPrices prices(inputs);
  const int64_t devices = inputs.levels[0].count;
  double slowest = 0;
  for (size_t s = 0; s < stages.size();) {
    const auto servers = ranks_by_server(stages[s], devices);
    const auto count = static_cast<int64_t>(servers.size());
    double period = 0;  // of one server
    double bytes = 0;
    size_t end = s;
    for (; end < stages.size(); ++end) {
      const auto mine = ranks_by_server(stages[end], devices);
      const auto same_server = [](const auto& a, const auto& b) { return a.first == b.first; };
      if (mine.size() != servers.size() ||
          !std::equal(mine.begin(), mine.end(), servers.begin(), same_server))
        break;
      const int64_t replicas = mine.begin()->second;
      for (const auto& [server, ranks] : mine) {
        if (ranks == replicas) continue;
        throw PlanError("plan: stage " + std::to_string(end) + " has " + std::to_string(replicas) +
                            " ranks in one server and " + std::to_string(ranks) +
                            " in another; objective 'pipedream' has no price for that",
                        "Use --objective pipewright or pipedream-shared-nic.");
      }
      const StageLoad& load = loads[end];
      const auto parameters = static_cast<double>(load.parameter_bytes);
      const double alone = prices.inside(load.compute_seconds(), parameters, replicas);
      const auto out = static_cast<double>(load.last ? 0 : load.charged_out_bytes);
      period = std::max(period, end == s ? alone
                                         : prices.later(alone, static_cast<double>(load.charged_in_bytes),
                                                        out, 0, replicas));
      bytes += parameters;
    }
    const auto in = static_cast<double>(loads[s].charged_in_bytes);
    const auto out = static_cast<double>(loads[end - 1].last ? 0 : loads[end - 1].charged_out_bytes);
    slowest = std::max(slowest, s == 0 ? prices.first_above(period, bytes, count, devices)
                                       : prices.later(prices.above(period, bytes, count), in, out, 1, count));
    s = end;
  }
  return slowest;
}

}  // namespace pipewright
