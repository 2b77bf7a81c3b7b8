#include "optimizer/plan/row_orders.h"

#include <algorithm>
#include <numeric>

namespace pipewright {

RankOrder order_of_stages(const Plan& plan, int64_t ranks) {
  RankOrder order;
  std::vector<bool> met(static_cast<size_t>(ranks));
  const auto meet = [&](int64_t rank) {
    if (!met[static_cast<size_t>(rank)]) order.push_back(rank);
    met[static_cast<size_t>(rank)] = true;
  };
  for (const Stage& stage : plan.stages)
    for (const int64_t rank : stage.ranks) meet(rank);
  for (int64_t rank = 0; rank < ranks; ++rank) meet(rank);
  return order;
}

std::vector<RankOrder> orders_of_ranks(const Topology& topology, const Plan& in_force) {
  const int64_t ranks = topology.device_count();
  RankOrder given(static_cast<size_t>(ranks));
  std::iota(given.begin(), given.end(), int64_t{0});
  if (topology.levels.size() > 1 || topology.devices.empty()) return {given};
  std::vector<RankOrder> orders;
  for (RankOrder order : {order_of_stages(in_force, ranks), given}) {
    for (const bool turned : {false, true}) {
      if (turned) std::reverse(order.begin(), order.end());
      if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(order);
    }
  }
  return orders;
}

}  // namespace pipewright
