#include "runtime/job/predicted_speeds.h"

#include <algorithm>
#include <cstdio>
#include <map>
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
    : predictor_(std::move(predictor)),
      profile_(profile),
      order_(order_of_features(predictor_)),
      parts_(stretches_of_work(profile, kParts)) {}

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
  std::string outside;
  const std::optional<double> slowdown = predicted(sample.features, rank.bytes_per_second, &outside);
  rank.samples.push_back({sample.features, slowdown});
  if (rank.samples.size() > kAgree) rank.samples.pop_front();
  settle(&rank);
  if (!outside.empty() && rank.samples.size() == kAgree && !knows(rank))
    warn(number, "is outside the range in which the predictor was trained: " + outside);
}

// Nothing, and where it lies, outside the range of the training data.
std::optional<double> PredictedSpeeds::predicted(const std::vector<double>& features, double bytes_per_second,
                                                 std::string* outside) const {
  const std::vector<double> all = with_work(features, bytes_per_second);
  std::vector<double> row;
  for (const size_t feature : order_) row.push_back(all.at(feature));
  *outside = predictor_.outside(row);
  return outside->empty() ? std::optional(predictor_.predict(row)) : std::nullopt;
}

void PredictedSpeeds::warn(size_t number, const std::string& what) {
  if (std::exchange(ranks_[number].has_warned, true)) return;
  std::fprintf(stderr, "adapt: rank %zu %s; what it measures counts instead\n", number, what.c_str());
}

// Whether the forest can say something of it now.
bool PredictedSpeeds::knows(const Rank& rank) {
  const auto within = std::count_if(rank.samples.begin(), rank.samples.end(),
                                    [](const Sample& sample) { return sample.slowdown.has_value(); });
  return rank.samples.size() == kAgree && static_cast<size_t>(2 * within) > kAgree;
}

void PredictedSpeeds::settle(Rank* rank) const {
  if (!knows(*rank)) return;
  std::vector<double> values;
  for (const Sample& sample : rank->samples)
    if (sample.slowdown) values.push_back(*sample.slowdown);
  std::sort(values.begin(), values.end());
  const bool slower = values.front() >= kStep * rank->slowdown;
  const bool faster = values.back() * kStep <= rank->slowdown;
  if (!slower && !faster) return;
  rank->slowdown = values[values.size() / 2];
  if (rank->slowdown < LevelMonitor::kQuiet) rank->slowdown = 1;
  rank->by_node = rank->slowdown == 1 ? std::vector<double>() : slowdowns_by_node(*rank);
}

// Its own nodes are as slow as its stages; others as their part of the model would be, the median of the
// samples, where the forest can say.
std::vector<double> PredictedSpeeds::slowdowns_by_node(const Rank& rank) const {
  std::map<std::string, double> of_node;
  for (const std::vector<std::string>& part : parts_) {
    const double bytes_per_second = work_bytes_per_second(profile_, part);
    std::vector<double> values;
    std::string outside;
    for (const Sample& sample : rank.samples)
      if (const auto value = predicted(sample.features, bytes_per_second, &outside)) values.push_back(*value);
    std::sort(values.begin(), values.end());
    const double slowdown = values.empty() ? rank.slowdown : values[values.size() / 2];
    for (const std::string& node : part) of_node[node] = slowdown;
  }
  for (const std::string& node : rank.nodes) of_node[node] = rank.slowdown;
  std::vector<double> by_node;
  for (const ProfiledNode& node : profile_.nodes) by_node.push_back(of_node.at(node.name));
  const auto [least, most] = std::minmax_element(by_node.begin(), by_node.end());
  return *most < kUneven * *least ? std::vector<double>() : by_node;
}

Slowdowns PredictedSpeeds::slowdowns(const RunNow& now) {
  const bool news =
      std::any_of(now.cores.begin(), now.cores.end(), [](const auto& samples) { return !samples.empty(); });
  if (news || ranks_.size() != now.speeds.size()) follow_plan(now.plan, now.speeds.size());
  Slowdowns slowdowns;
  for (size_t number = 0; number < ranks_.size(); ++number) {
    if (number < now.cores.size())
      for (const CoreSample& sample : now.cores[number]) take(number, sample);
    Rank& rank = ranks_[number];
    // With few samples the plan has just begun: it is as slow as it was.
    const bool predicts = rank.is_bound && (rank.samples.size() < kAgree || knows(rank));
    if (!predicts) {  // so slow it begins with the next plan, too
      rank.slowdown = now.speeds[number].slowdown;
      rank.by_node.clear();
    }
    slowdowns.ranks.push_back(rank.slowdown);
    if (!rank.by_node.empty()) slowdowns.nodes.emplace(number, rank.by_node);
  }
  return slowdowns;
}

}  // namespace pipewright
