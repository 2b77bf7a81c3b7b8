#include "runtime/job/predicted_speeds.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"
#include "interference/core_features.h"
#include "interference/work.h"

namespace pipewright {
namespace {

std::vector<size_t> order_of_features(const Predictor& predictor) {
  const std::vector<std::string> known = core_feature_names();
  std::vector<size_t> order;
  for (const FeatureRange& feature : predictor.features()) {
    const auto found = std::find(known.begin(), known.end(), feature.name);
    if (found == known.end())
      throw InputError("adapt: predictor: it reads " + in_quotes(feature.name) +
                           ", which ranks do not measure; they measure " + join(known, ", "),
                       "Likely cause: it was trained on DynPipe's data. Next: pipewright-profiler "
                       "interference makes a data set of this machine.");
    order.push_back(static_cast<size_t>(found - known.begin()));
  }
  return order;
}

}  // namespace

PredictedSpeeds::PredictedSpeeds(Predictor predictor, const Profile& profile)
    : predictor_(std::move(predictor)), profile_(profile), order_(order_of_features(predictor_)) {}

void PredictedSpeeds::follow_plan(const Plan& plan, size_t ranks) {
  ranks_.resize(ranks);
  std::vector<std::vector<std::string>> nodes(ranks);
  for (const Stage& stage : plan.stages)
    for (const int64_t rank : stage.ranks) {
      std::vector<std::string>& of_rank = nodes.at(static_cast<size_t>(rank));
      of_rank.insert(of_rank.end(), stage.nodes.begin(), stage.nodes.end());
    }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (ranks_[rank].nodes == nodes[rank]) continue;
    ranks_[rank].bytes_per_second = work_bytes_per_second(profile_, nodes[rank]);
    ranks_[rank].nodes = std::move(nodes[rank]);
    ranks_[rank].samples.clear();
  }
}

void PredictedSpeeds::take(size_t number, const CoreSample& sample) {
  Rank& rank = ranks_[number];
  rank.is_bound = !sample.features.empty();
  if (!rank.is_bound) return warn(number, "is bound to no core, so that the predictor knows nothing of it");
  const std::vector<double> all = with_work(sample.features, rank.bytes_per_second);
  std::vector<double> row;
  for (const size_t feature : order_) row.push_back(all.at(feature));
  const std::string outside = predictor_.outside(row);
  rank.samples.push_back(outside.empty() ? std::optional(predictor_.predict(row)) : std::nullopt);
  if (rank.samples.size() > kAgree) rank.samples.pop_front();
  settle(&rank);
  if (!outside.empty() && rank.samples.size() == kAgree && !knows(rank))
    warn(number, "is outside the range in which the predictor was trained: " + outside);
}

void PredictedSpeeds::warn(size_t number, const std::string& what) {
  if (std::exchange(ranks_[number].has_warned, true)) return;
  std::fprintf(stderr, "adapt: rank %zu %s; what it measures counts instead\n", number, what.c_str());
}

// Whether the forest can say something of it now.
bool PredictedSpeeds::knows(const Rank& rank) {
  const auto within = std::count_if(rank.samples.begin(), rank.samples.end(),
                                    [](const auto& sample) { return sample.has_value(); });
  return rank.samples.size() == kAgree && static_cast<size_t>(2 * within) > kAgree;
}

void PredictedSpeeds::settle(Rank* rank) {
  if (!knows(*rank)) return;
  std::vector<double> values;
  for (const std::optional<double>& sample : rank->samples)
    if (sample) values.push_back(*sample);
  std::sort(values.begin(), values.end());
  const bool slower = values.front() >= kStep * rank->slowdown;
  const bool faster = values.back() * kStep <= rank->slowdown;
  if (!slower && !faster) return;
  rank->slowdown = values[values.size() / 2];
  if (rank->slowdown < LevelMonitor::kQuiet) rank->slowdown = 1;
}

std::vector<double> PredictedSpeeds::slowdowns(const RunNow& now) {
  const bool news =
      std::any_of(now.cores.begin(), now.cores.end(), [](const auto& samples) { return !samples.empty(); });
  if (news || ranks_.size() != now.speeds.size()) follow_plan(now.plan, now.speeds.size());
  std::vector<double> slowdowns;
  for (size_t number = 0; number < ranks_.size(); ++number) {
    if (number < now.cores.size())
      for (const CoreSample& sample : now.cores[number]) take(number, sample);
    const Rank& rank = ranks_[number];
    // With few samples the plan has just begun: it is as slow as it was.
    const bool predicts = rank.is_bound && (rank.samples.size() < kAgree || knows(rank));
    slowdowns.push_back(predicts ? rank.slowdown : now.speeds[number].slowdown);
  }
  return slowdowns;
}

}  // namespace pipewright
