#include "runtime/worker/plan_links.h"

#include <map>
#include <numeric>
#include <set>

#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/schedule/split_messages.h"
#include "runtime/schedule/turns.h"

namespace pipewright {
namespace {

// Ranks of stage s and of s + 1 that process the same minibatches.
std::set<std::pair<int64_t, int64_t>> neighbours(const Plan& plan, const PipelineShape& shape, size_t s) {
  const Stage& left = plan.stages[s];
  const Stage& right = plan.stages[s + 1];
  std::set<std::pair<int64_t, int64_t>> pairs;
  // Pieces of minibatches, in training. In evaluations a stage that splits takes turns.
  for (size_t q = 0; q < left.ranks.size(); ++q) {
    if (!shape.splits(static_cast<int64_t>(s)) && !shape.splits(static_cast<int64_t>(s) + 1)) break;
    const auto stage = static_cast<int64_t>(s);
    const ReplicaRange met = parts_met(shape, stage, static_cast<int64_t>(q), stage + 1);
    for (size_t p = 0; p < right.ranks.size(); ++p) {
      const auto place = static_cast<int64_t>(p);
      const bool meets = !shape.splits(stage + 1) || (met.first <= place && place < met.first + met.count);
      if (meets) pairs.insert({left.ranks[q], right.ranks[p]});
    }
  }
  const auto cycle = [&](size_t of) { return StageTurns(shape, static_cast<int64_t>(of)).cycle_length(); };
  const int64_t turns = std::lcm(cycle(s), cycle(s + 1));
  for (int64_t k = 0; k < turns && pairs.size() < left.ranks.size() * right.ranks.size(); ++k) {
    const auto stage = static_cast<int64_t>(s);
    pairs.insert({rank_of_minibatch(plan, shape, stage, k), rank_of_minibatch(plan, shape, stage + 1, k)});
  }
  return pairs;
}

}  // namespace

bool clips_over_model(const Plan& plan) {
  return weight_rule_facts(plan.weights).drains() || !plan.tied_parameters.empty();
}

DeviceLinks links_of(const Plan& plan, StreamTags tags, bool clips, const SyncFacts& sync) {
  const auto range = [&](Stream stream, size_t stage) {
    return TagRange{tags.of(stream, static_cast<int64_t>(stage)), StreamTags::kMostParts};
  };
  const PipelineShape shape = shape_of(plan);
  DeviceLinks all;
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s) {
    std::set<std::pair<int64_t, int64_t>> pairs = neighbours(plan, shape, s);
    if (shape.any_splits()) pairs.merge(neighbours(plan, evaluation_shape(shape), s));
    for (const auto& [left, right] : pairs) {
      if (left == right) continue;
      all.links.push_back({left, right, {range(Stream::kActivation, s), range(Stream::kEvaluation, s)}});
      all.links.push_back({right, left, {range(Stream::kGradient, s + 1)}});
    }
  }
  std::map<std::pair<int64_t, int64_t>, std::vector<TagRange>> tied;  // by sender and receiver
  for (size_t t = 0; t < plan.tied_parameters.size(); ++t) {
    const std::vector<int64_t>& stages = plan.tied_parameters[t].stages;
    for (const int64_t from : stages) {
      for (const int64_t to : stages) {
        if (from == to) continue;
        const auto& senders = plan.stages[static_cast<size_t>(from)].ranks;
        const auto& receivers = plan.stages[static_cast<size_t>(to)].ranks;
        for (size_t q = 0; q < receivers.size(); ++q) {  // replica q hears from replica q mod their number
          const int64_t sender = senders[q % senders.size()];
          if (sender == receivers[q]) continue;
          tied[{sender, receivers[q]}].push_back({tags.of(Stream::kTied, from, static_cast<int64_t>(t)), 1});
        }
      }
    }
  }
  for (auto& [ranks, ranges] : tied) all.links.push_back({ranks.first, ranks.second, std::move(ranges)});
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (plan.stages[s].ranks.size() == 1) continue;
    all.sums.push_back({plan.stages[s].ranks, {range(Stream::kReplicaSum, s), range(Stream::kBufferSum, s)}});
  }
  if (clips && clips_over_model(plan)) {
    const int64_t pipelines = turn_of(plan, sync, 0).count;
    for (int64_t i = 0; i < pipelines; ++i) {
      std::vector<int64_t> ranks = ranks_of(pipeline_of(plan, {i, pipelines}));
      if (ranks.size() > 1) all.sums.push_back({std::move(ranks), {range(Stream::kSquareSum, 0)}});
    }
  }
  return all;
}

}  // namespace pipewright
