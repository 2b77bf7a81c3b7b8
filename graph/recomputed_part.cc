#include "graph/recomputed_part.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace pipewright {

size_t first_recomputed(const Stage& stage, const std::vector<std::vector<std::string>>& together) {
  const size_t nodes = stage.nodes.size();
  if (!stage.recompute) return nodes;
  const auto again =
      static_cast<size_t>(std::floor(stage.recompute_ratio * static_cast<double>(nodes) + 0.5));
  size_t first = nodes - std::min(again, nodes);
  if (first == 0 || first == nodes || together.empty()) return first;
  std::unordered_map<std::string, size_t> position;
  for (size_t i = 0; i < nodes; ++i) position.emplace(stage.nodes[i], i);
  for (bool grows = true; grows;) {
    grows = false;
    for (const auto& set : together) {
      size_t least = nodes, most = 0;
      for (const std::string& name : set) {
        const auto at = position.find(name);
        if (at == position.end()) continue;
        least = std::min(least, at->second);
        most = std::max(most, at->second);
      }
      if (least >= first || most < first) continue;
      first = least;
      grows = true;
    }
  }
  return first;
}

}  // namespace pipewright
