#include "optimizer/cuts/orders.h"

#include <algorithm>
#include <random>

namespace pipewright {

std::vector<int> order_of_groups(const Contraction& graph, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&random](size_t count) { return random() % count; };
  std::vector<size_t> missing;
  std::vector<int> ready;  // what became ready last stands last
  for (int g = 0; g < graph.size(); ++g) missing.push_back(graph.previous[g].size());
  for (int g = graph.size(); g-- > 0;) {
    if (missing[g] == 0) ready.push_back(g);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const bool jump = seed != 0 && below(8) == 0;
    const size_t at = jump ? below(ready.size()) : ready.size() - 1;
    const int group = ready[at];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(at));
    order.push_back(group);
    const size_t old = ready.size();
    for (size_t k = graph.next[group].size(); k-- > 0;) {
      const int after = graph.next[group][k];
      if (--missing[after] == 0) ready.push_back(after);
    }
    if (seed == 0) continue;
    for (size_t k = ready.size(); k > old + 1; --k) std::swap(ready[k - 1], ready[old + below(k - old)]);
  }
  return order;
}

std::vector<NodeSet> cuts_along(const Contraction& graph, const std::vector<int>& order) {
  std::vector<NodeSet> cuts = {NodeSet(graph.group_of.size())};
  for (const int group : order) {
    NodeSet cut = cuts.back();
    for (const int v : graph.members[group]) cut.set(v);
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

}  // namespace pipewright
