#include "models/run/loss_divisor.h"

#include <ATen/ops/ne.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "graph/graph_identity.h"
#include "models/definition/literal.h"
#include "models/run/batch_analysis.h"

namespace pipewright {
namespace {

using FactorKind = DenominatorFactor::Kind;

// Of two minibatches together it is the sum of both.
bool adds_up(const BatchAnalysis& found, const std::string& value) {
  const auto relation = found.values.find(value);
  return relation != found.values.end() && relation->second.is(BatchRelation::Kind::kSum);
}

// What keeps a number of labels off 0.
bool is_bound(const Node& node) {
  static const std::set<std::string> bounds = {"aten::clamp", "aten::clamp_min", "aten::clip",
                                               "aten::maximum", "aten::add"};
  return bounds.count(node.op) > 0;
}

// The sum over samples that bounds are applied to, if any, to make `value`. "": `value` is made otherwise.
std::string sum_behind_bounds(const Graph& graph, const BatchAnalysis& found, std::string value) {
  std::map<std::string, const Node*> makers;
  for (const Node& node : graph.nodes)
    for (const std::string& output : node.outputs) makers[output] = &node;
  while (!adds_up(found, value)) {
    const auto maker = makers.find(value);
    if (maker == makers.end() || !is_bound(*maker->second)) return {};
    const auto* self = literal<TensorArgument>(*maker->second, "self");
    if (self == nullptr) return {};
    value = self->name;
  }
  return value;
}

}  // namespace

double number_of(const DenominatorFactor& factor, int64_t samples, const TensorOfName& tensor) {
  if (factor.kind == FactorKind::kSamples) return static_cast<double>(samples);
  const at::Tensor value = tensor(factor.value);
  if (factor.kind == FactorKind::kValue) return value.item().toDouble();
  const at::Tensor asks = value.ne(factor.ignored);
  if (factor.weights.empty()) return asks.sum().item<double>();
  const at::Tensor labels = value.masked_select(asks).to(at::kLong);
  return tensor(factor.weights).index_select(0, labels).sum(at::kDouble).item<double>();
}

LossDivisor::LossDivisor(const Model& model, const std::optional<Scoring>& scoring) {
  if (!find(model) && !loss_is_sum(model.graph)) {
    DenominatorFactor factor;
    if (scoring && scoring->is_mean)
      factor = {FactorKind::kLabels, scoring->targets, scoring->ignored, scoring->class_weights};
    parts_ = {{factor, factor}};
  }
  std::set<std::string> reads;
  for (const Part& part : parts_)
    for (const auto& name : {part.factor.value, part.factor.weights, part.added.value})
      if (!name.empty()) reads.insert(name);
  reads_.assign(reads.begin(), reads.end());
}

bool LossDivisor::find(const Model& model) {
  if (model.fixed_batch || !model.graph_for || model.graph.outputs.empty()) return false;
  // Twice as many samples are what a program takes that was exported for multiples of some number.
  const Graph whole = evaluation_graph(model.graph);
  const Graph twice = evaluation_graph(with_batch_size(model, 2 * samples_of(model.graph)));
  std::vector<size_t> nodes(whole.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  const BatchAnalysis found = analyse_batch(whole, twice, nodes, /*samples_meet=*/true);
  const auto loss = found.values.find(whole.outputs[0]);
  if (loss == found.values.end() || !loss->second.is_linear()) return false;
  for (const DenominatorFactor& factor : loss->second.denominator) {
    Part part{factor, factor};
    if (factor.kind == FactorKind::kValue) {
      part.added.value = sum_behind_bounds(whole, found, factor.value);
      if (part.added.value.empty()) return parts_ = {}, false;
    }
    parts_.push_back(std::move(part));
  }
  return true;
}

LossParts LossDivisor::parts_of(int64_t samples, const TensorOfName& tensor) const {
  LossParts parts;
  for (const Part& part : parts_) {
    parts.divisor *= number_of(part.factor, samples, tensor);
    parts.counts.push_back(number_of(part.added, samples, tensor));
  }
  return parts;
}

}  // namespace pipewright
