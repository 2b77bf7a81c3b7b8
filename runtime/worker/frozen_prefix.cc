#include "runtime/worker/frozen_prefix.h"

#include <algorithm>
#include <map>
#include <utility>

#include "graph/error.h"
#include "graph/model_layers.h"
#include "models/definition/frozen.h"
#include "runtime/data/normalised.h"
#include "runtime/worker/stage_loaders.h"

namespace pipewright {
namespace {

// So many earlier depths are looked for; what was kept at others is older than an epoch as a rule.
constexpr size_t kDepths = 2;

// Layers that lie before `end` as a whole.
int64_t layers_before(const Graph& graph, size_t end) {
  const auto layers = model_layers(graph);
  return std::count_if(layers.begin(), layers.end(),
                       [&](const ModelLayer& layer) { return layer.end <= end; });
}

PrefixSources sources_of(const PrefixInputs& inputs, const StageReplica& stage) {
  PrefixSources sources;
  sources.request = inputs.request;
  const bool on_device = !stage.device().is_cpu();
  sources.load = [&data = inputs.data, request = inputs.request, on_device](
                     int64_t k, const std::vector<std::string>& names) {
    return Loader(data, field_numbers(data, names), {request(k)}, {.count = 0}, /*ahead=*/0,
                  /*pinned=*/on_device, /*stored=*/on_device)
        .next();
  };
  if (on_device)  // by fields: those of the whole stage, and those that the rest reads
    sources.make = [&data = inputs.data, device = stage.device(),
                    known = std::map<std::vector<std::string>, FieldsOnDevice>{}](
                       const std::vector<std::string>& names, std::vector<at::Tensor>& loaded) mutable {
      known.try_emplace(names, data, field_numbers(data, names), device).first->second.make(loaded);
    };
  sources.state = [&stage] { return std::pair(stage.weights(), stage.buffers()); };
  sources.log = inputs.log;
  sources.impure = inputs.impure;
  return sources;
}

}  // namespace

size_t end_of_frozen_prefix(const Graph& graph, const Plan& plan) {
  const size_t frozen = frozen_nodes(graph, plan.frozen_layers);
  if (frozen == 0) return 0;
  std::map<std::string, size_t> positions;
  for (size_t i = 0; i < graph.nodes.size(); ++i) positions[graph.nodes[i].name] = i;
  size_t end = 0;
  for (const std::string& node : plan.stages.front().nodes) {
    const size_t position = positions.at(node);
    if (position < frozen) end = std::max(end, position + 1);
  }
  return end;
}

std::unique_ptr<CachedPrefix> cache_frozen_prefix(const Model& model, const Plan& plan,
                                                  const std::vector<const Plan*>& before, Worker& worker,
                                                  const PrefixInputs& inputs) {
  StageReplica& stage = worker.stage();
  const Graph& graph = model.graph;
  const size_t end = end_of_frozen_prefix(graph, plan);
  if (stage.stage() != 0 || end == 0) return nullptr;
  if (plan.stages.front().splits()) {
    inputs.log(std::string("cache: not used: ") + kFirstStageSplits);
    return nullptr;
  }
  const auto cut = stage.cut(graph, plan, end);
  if (!cut->obstacle().empty()) {
    inputs.log("cache: not used: " + cut->obstacle());
    inputs.impure(cut->obstacle());
    return nullptr;
  }
  const auto space_at = [&](const PrefixCut& at, size_t nodes) {
    CacheSpace space;
    space.data = inputs.data_spec;
    space.split = "train";
    space.layers = layers_before(graph, nodes);
    space.weights = at.digest(stage.weights(), stage.buffers());
    space.dtype = inputs.dtype;
    return space.finish();
  };
  std::vector<CachedPrefix::Shallower> shallower;
  size_t last = end;
  for (auto earlier = before.rbegin(); earlier != before.rend() && shallower.size() < kDepths; ++earlier) {
    const size_t nodes = end_of_frozen_prefix(graph, **earlier);
    if (nodes == 0 || nodes >= last) continue;
    last = nodes;
    auto further_ahead = stage.cut(graph, plan, nodes);
    if (!further_ahead->obstacle().empty() || further_ahead->values() == cut->values()) continue;
    CacheSpace space = space_at(*further_ahead, nodes);
    shallower.push_back({std::move(further_ahead), std::move(space)});
  }
  stage.run_behind(cut);
  auto prefix = std::make_unique<CachedPrefix>(
      cut, inputs.cache, space_at(*cut, end), sources_of(inputs, stage),
      NextUses(inputs.request, inputs.minibatches_per_epoch, inputs.data.size()), std::move(shallower));
  if (!inputs.measures) prefix->worth_it = true;
  return prefix;
}

}  // namespace pipewright
