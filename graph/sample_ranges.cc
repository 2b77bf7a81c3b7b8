#include "graph/sample_ranges.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "graph/error.h"
#include "graph/graph.h"
#include "graph/graph_identity.h"
#include "graph/model_layers.h"
#include "graph/plan.h"

namespace pipewright {
namespace {

// Operators that mix the samples of a minibatch where this argument is true.
struct MixingOperator {
  const char* op;
  const char* argument;
};
constexpr MixingOperator kMixing[] = {
    {"aten::batch_norm", "training"},
    {"aten::native_batch_norm", "training"},
    {"aten::cudnn_batch_norm", "training"},
    {"aten::_native_batch_norm_legit", "training"},
    {"aten::_batch_norm_impl_index", "training"},
};

// Whether the result for one sample depends on the others.
bool mixes_samples(const Node& node) {
  for (const MixingOperator& mixing : kMixing) {
    if (node.op != mixing.op) continue;
    for (const auto& [name, value] : node.arguments) {
      const bool* const given = std::get_if<bool>(&value);
      if (name == mixing.argument && given != nullptr) return *given;
    }
  }
  return false;
}

// Frozen layers run as in evaluation, with the statistics that they have.
size_t first_trained_node(const Plan& plan, const Graph& graph) {
  if (plan.frozen_layers == 0) return 0;
  return end_of_layers(model_layers(graph), plan.frozen_layers, "model '" + graph.name + "'");
}

}  // namespace

SampleRange overlap(const SampleRange& a, const SampleRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::vector<SampleRange> sample_ranges(int64_t samples, const std::vector<int64_t>& weights) {
  if (weights.empty()) return {{0, samples}};
  const int64_t all = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<SampleRange> ranges;
  int64_t before = 0;
  for (const int64_t weight : weights) {
    ranges.push_back({samples * before / all, samples * (before + weight) / all});
    before += weight;
  }
  return ranges;
}

double largest_part(const Stage& stage) {
  if (!stage.splits()) return 1;
  const int64_t all = std::accumulate(stage.split.begin(), stage.split.end(), int64_t{0});
  return static_cast<double>(*std::max_element(stage.split.begin(), stage.split.end())) /
         static_cast<double>(all);
}

void check_split_stages(const Plan& plan, const Graph& graph) {
  std::unordered_map<std::string, size_t> position;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (!stage.splits()) continue;
    const std::string at = "plan: stage " + std::to_string(s) + " has `split`, ";
    const int64_t samples = samples_of(graph);
    const std::vector<SampleRange> ranges = sample_ranges(samples, stage.split);
    for (size_t q = 0; q < ranges.size(); ++q) {
      if (ranges[q].size() > 0) continue;
      throw PlanError(at + "and of a minibatch of " + std::to_string(samples) + " samples replica " +
                          std::to_string(q) + " gets none",
                      "Give larger minibatches (--batch-size), fewer ranks, or weights less far apart.");
    }
    if (position.empty())
      for (size_t i = 0; i < graph.nodes.size(); ++i) position.emplace(graph.nodes[i].name, i);
    const size_t trained = first_trained_node(plan, graph);
    for (const std::string& name : stage.nodes) {
      const size_t i = position.at(name);
      if (i < trained || !mixes_samples(graph.nodes[i])) continue;
      throw PlanError(at + "and its node '" + name + "' (" + graph.nodes[i].op +
                          ") takes statistics of the whole minibatch, of which each replica has a part",
                      "Leave out `split` of this stage: its replicas then take whole minibatches in turns.");
    }
  }
}

}  // namespace pipewright
