#include "optimizer/plan/pool_choice.h"

#include <map>
#include <optional>

#include "optimizer/plan/moves.h"
#include "optimizer/search/thin_stages.h"

namespace pipewright {
namespace {

constexpr double kWorthMore = 0.9999;  // further devices for less are not worth having

const PoolAnswer& on_fewest_devices(const std::vector<PoolAnswer>& fastest) {
  const PoolAnswer* best = &fastest.front();
  for (const PoolAnswer& each : fastest) {
    if (each.seconds * kWorthMore > fastest.front().seconds) break;
    if (each.candidate.devices() < best->candidate.devices()) best = &each;
  }
  return *best;
}

/// The likeliest of those within `enough` seconds with a stage that hardly computes joined to a neighbour.
std::optional<PoolAnswer> with_a_join(const Candidate& from, double enough, const Question& q,
                                      Pricer* pricer) {
  std::vector<Candidate> ways;
  for (const std::vector<FoundStage>& stages : with_thin_stage_joined(from.stages, q))
    ways.push_back({Chain{stages}});
  for (size_t s = 0; s + 1 < from.stages.size(); ++s) {
    if (!is_thin(from.stages[s], q) && !is_thin(from.stages[s + 1], q)) continue;
    for (const Shape& shape : joined_at(q, shape_of(from.stages), s))
      for (Candidate& way : in_every_layout(q, shape)) ways.push_back(std::move(way));
  }
  std::multimap<double, std::pair<Candidate, double>> likely;
  for (Candidate& way : ways) {
    if (!way.allowed_by(q)) continue;
    const NetworkPace pace = pricer->pace(&way, enough);
    if (pace.floor_seconds <= enough)
      likely.emplace(pace.likely_seconds, std::pair(std::move(way), pace.floor_seconds));
  }
  for (auto& [seconds, each] : likely) {
    const auto price = pricer->price(each.first, each.second, enough);
    if (price && price->seconds <= enough)
      return PoolAnswer{std::move(each.first), price->depths, price->seconds};
  }
  return std::nullopt;
}

}  // namespace

PoolAnswer chosen_of(const std::vector<PoolAnswer>& fastest, const Question& question, Pricer* pricer) {
  PoolAnswer plan = on_fewest_devices(fastest);
  const double enough = kThinTolerance * plan.seconds;
  if (!has_thin_stage(plan.candidate.stages, question)) return plan;
  while (const std::optional<PoolAnswer> joined = with_a_join(plan.candidate, enough, question, pricer))
    plan = *joined;
  for (const PoolAnswer& each : fastest) {
    if (each.seconds > enough || has_thin_stage(each.candidate.stages, question)) continue;
    const bool better = each.seconds < plan.seconds || has_thin_stage(plan.candidate.stages, question);
    return better ? each : plan;
  }
  return plan;
}

}  // namespace pipewright
