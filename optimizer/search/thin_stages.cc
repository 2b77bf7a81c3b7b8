#include "optimizer/search/thin_stages.h"

#include <algorithm>
#include <set>

#include "optimizer/cost/stage_times.h"

namespace pipewright {
namespace {

FoundStage joined(const FoundStage& first, const FoundStage& second, int64_t replicas) {
  FoundStage stage;
  stage.from = first.from;
  stage.to = second.to;
  stage.replicas = replicas;
  stage.recompute = first.recompute || second.recompute;
  stage.ranks = first.ranks;
  stage.ranks.insert(stage.ranks.end(), second.ranks.begin(), second.ranks.end());
  std::sort(stage.ranks.begin(), stage.ranks.end());
  return stage;
}

}  // namespace

bool is_thin(const FoundStage& stage, const Question& q) {
  return computes_less_than_messages(load_between(*q.states, stage.from, stage.to), q.inputs);
}

bool has_thin_stage(const std::vector<FoundStage>& stages, const Question& q) {
  return stages.size() > 1 && std::any_of(stages.begin(), stages.end(),
                                          [&](const FoundStage& stage) { return is_thin(stage, q); });
}

std::vector<std::vector<FoundStage>> with_thin_stage_joined(const std::vector<FoundStage>& stages,
                                                            const Question& q) {
  std::vector<std::vector<FoundStage>> ways;
  const bool uneven =
      std::any_of(stages.begin(), stages.end(), [](const auto& s) { return !s.shares.empty(); });
  for (size_t s = 0; s + 1 < stages.size() && !uneven; ++s) {
    if (!is_thin(stages[s], q) && !is_thin(stages[s + 1], q)) continue;
    const int64_t all = stages[s].replicas + stages[s + 1].replicas;
    std::set<int64_t> replicas = {all};
    if (stages[s].ranks.empty())
      replicas.insert({all - 1, std::max(stages[s].replicas, stages[s + 1].replicas)});
    for (const int64_t count : replicas) {
      std::vector<FoundStage> way(stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(s));
      way.push_back(joined(stages[s], stages[s + 1], count));
      way.insert(way.end(), stages.begin() + static_cast<std::ptrdiff_t>(s) + 2, stages.end());
      ways.push_back(std::move(way));
    }
  }
  return ways;
}

}  // namespace pipewright
