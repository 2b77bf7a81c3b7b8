#include "optimizer/plan/faster_links.h"

#include <cmath>

#include "graph/error.h"

namespace pipewright {

std::optional<Topology> with_faster_links(Topology topology, double factor) {
  constexpr double kMost = 1e18;
  for (TopologyLevel& level : topology.levels) {
    level.bandwidth_bytes_per_second *= factor;
    if (level.bandwidth_bytes_per_second > kMost) return std::nullopt;
  }
  return topology;
}

std::vector<std::pair<double, double>> seconds_by_bandwidth(const Plan& plan, const Profile& profile,
                                                            const Topology& topology,
                                                            const PlanRequest& request) {
  std::vector<std::pair<double, double>> all;
  for (int power = -4; power <= 4; ++power) {
    const std::optional<Topology> links = with_faster_links(topology, std::exp2(power));
    if (!links) break;
    double seconds = std::nan("");
    try {
      seconds = evaluate_plan(plan, profile, *links, request).minibatch_seconds;
    } catch (const Error&) {  // with these links it does not run
    }
    all.emplace_back(links->levels.back().bandwidth_bytes_per_second, seconds);
  }
  return all;
}

}  // namespace pipewright
