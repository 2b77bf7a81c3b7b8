#include "optimizer/baselines/halving.h"

#include <algorithm>
#include <numeric>

#include "graph/document.h"
#include "graph/error.h"
#include "optimizer/cost/dataflow.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/stage_layers.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

using Sizes = SubLayerSizes;

double sum_of(Sizes::const_iterator begin, Sizes::const_iterator end) {
  return std::accumulate(begin, end, 0.0);
}

/// Of all of them, not of a sample.
double variance_of(Sizes::const_iterator begin, Sizes::const_iterator end) {
  const auto count = static_cast<double>(end - begin);
  const double mean = sum_of(begin, end) / count;
  double squares = 0;
  for (auto size = begin; size != end; ++size) squares += (*size - mean) * (*size - mean);
  return squares / count;
}

}  // namespace

std::vector<int64_t> greedy_partition(const SubLayerSizes& sizes, int64_t stages) {
  PW_CHECK_LE(1, stages);
  std::vector<int64_t> counts;
  auto next = sizes.begin();
  for (int64_t left = stages; left > 1; --left) {
    const auto begin = next;
    if (begin != sizes.end()) {
      const auto rest = static_cast<double>(left);
      const double room = sum_of(begin, sizes.end()) / rest + variance_of(begin, sizes.end()) / rest;
      for (double sum = 0; next != sizes.end() && sum + *next < room; ++next) sum += *next;
    }
    counts.push_back(next - begin);
  }
  counts.push_back(sizes.end() - next);
  return counts;
}

double largest_part(const SubLayerSizes& sizes, const std::vector<int64_t>& counts) {
  double largest = 0;
  auto begin = sizes.begin();
  for (const int64_t count : counts) {
    largest = std::max(largest, sum_of(begin, begin + count));
    begin += count;
  }
  return largest;
}

int64_t halved_stages(const SubLayerSizes& sizes, int64_t frozen, int64_t stages, int64_t most_stages) {
  const double room = largest_part(sizes, greedy_partition(sizes, most_stages));
  const SubLayerSizes rest(sizes.begin() + frozen, sizes.end());
  while (frozen > 0 && stages >= 2 && largest_part(rest, greedy_partition(rest, stages / 2)) <= room)
    stages /= 2;
  return stages;
}

int64_t halving_microbatches(int64_t stages) { return stages == 1 ? 4 : std::max<int64_t>(16, 2 * stages); }

ProfiledSubLayers sub_layers(const Profile& profile) {
  const Dataflow flow(profile);
  NodeSet done(static_cast<size_t>(flow.size()));
  std::vector<int> waiting;  // by value: readers that have not run
  for (const DataflowValue& value : flow.values) waiting.push_back(static_cast<int>(value.readers.size()));
  int64_t crossing = 0;
  double size = 0;
  bool any = false;  // a parameter in the stretch under way
  ProfiledSubLayers all;
  for (int v = 0; v < flow.size(); ++v) {
    const auto at = static_cast<size_t>(v);
    for (const int made : flow.values_made[at]) crossing += waiting[static_cast<size_t>(made)] > 0;
    for (const int read : flow.values_read[at]) crossing -= --waiting[static_cast<size_t>(read)] == 0;
    done.set(at);
    size += static_cast<double>(flow.parameter_bytes[at]) / 4e6;
    any = any || flow.parameter_bytes[at] > 0;
    // A cached prefix is one piece for cuts, which this rule makes behind it alone.
    const bool whole = at + 1 < profile.frozen.nodes || separated_tie(flow, done).empty();
    const bool ends = v + 1 == flow.size() || (crossing <= 1 && whole);
    if (!ends) continue;
    if (any || all.ends.empty()) {
      all.sizes.push_back(size);
      all.ends.push_back(at + 1);
    } else {
      all.ends.back() = at + 1;
    }
    size = 0;
    any = false;
  }
  for (const size_t end : all.ends) all.frozen += end <= profile.frozen.nodes ? 1 : 0;
  return all;
}

Plan halving_plan(const Profile& frozen, const Topology& topology, const PlanRequest& request) {
  const ProfiledSubLayers layers = sub_layers(frozen);
  const int64_t devices = topology.device_count();
  int64_t most = 1;
  while (2 * most <= devices) most *= 2;
  const int64_t stages = halved_stages(layers.sizes, layers.frozen, most, most);
  const SubLayerSizes rest(layers.sizes.begin() + layers.frozen, layers.sizes.end());
  const int64_t pipelines = devices / stages;

  Plan plan;
  plan.model = frozen.model;
  plan.graph_digest = frozen.graph_digest;
  plan.device_passes = frozen.device_passes();
  plan.profile_digest = measured_digest(frozen);
  plan.topology_digest = document_digest(topology);
  plan.strategy = "manual";
  plan.schedule = "gpipe";
  plan.weights = "flush";
  plan.microbatches = halving_microbatches(stages);
  plan.frozen_layers = frozen.frozen.layers;
  const LayerWeights weights(frozen);
  size_t begin = 0;
  auto sub_layer = static_cast<size_t>(layers.frozen);
  for (const int64_t count : greedy_partition(rest, stages)) {
    sub_layer += static_cast<size_t>(count);
    const size_t end = count == 0 ? begin : layers.ends[sub_layer - 1];
    if (end == begin) continue;
    Stage stage;
    for (; begin < end; ++begin) stage.nodes.push_back(frozen.nodes[begin].name);
    stage.layers = weights.of(stage.nodes);
    stage.ranks.resize(static_cast<size_t>(pipelines));
    std::iota(stage.ranks.begin(), stage.ranks.end(), plan.world_size);
    plan.world_size += pipelines;
    plan.stages.push_back(std::move(stage));
  }
  const std::vector<int64_t> depths = schedule_named(plan.schedule).depths(shape_of(plan));
  for (size_t s = 0; s < depths.size(); ++s) plan.stages[s].in_flight = depths[s];
  plan.predicted = evaluate_plan(plan, frozen, topology, request);
  return plan;
}

}  // namespace pipewright
