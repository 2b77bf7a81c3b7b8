#include "runtime/stage/loss_shares.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "graph/error.h"
#include "graph/graph_identity.h"
#include "models/definition/literal.h"
#include "models/run/batch_analysis.h"
#include "models/run/interpreter.h"
#include "models/run/loss_terms.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/turns.h"
#include "runtime/stage/partition.h"
#include "runtime/stage/sample_split.h"

namespace pipewright {
namespace {

using FactorKind = DenominatorFactor::Kind;

constexpr const char* kByMinibatches =
    "Leave out --loss-average: an update then takes the mean of its minibatches' losses.";

std::string text_of(const DenominatorFactor& factor) {
  switch (factor.kind) {
    case FactorKind::kSamples:
      return "samples";
    case FactorKind::kValue:
      return "'" + factor.value + "'";
    case FactorKind::kLabels:
      return "elements of '" + factor.value + "' other than " + std::to_string(factor.ignored) +
             (factor.weights.empty() ? "" : ", each by its weight in '" + factor.weights + "'");
  }
  return {};
}

// What the plan asks for, as the begin of a refusal.
std::string asked(bool splits) {
  return splits ? "plan: the last stage has `split`, and " : "loss_average 'labels': ";
}
const char* way_out(bool splits) { return splits ? kTakeTurns : kByMinibatches; }

bool counts_samples_only(const Denominator& denominator) {
  return std::all_of(denominator.begin(), denominator.end(),
                     [](const DenominatorFactor& factor) { return factor.kind == FactorKind::kSamples; });
}

std::vector<std::string> reads_of(const Graph& graph, const std::vector<size_t>& nodes) {
  std::vector<std::string> names;
  for (const size_t i : nodes)
    for (const std::string& name : graph.nodes[i].reads()) names.push_back(name);
  return names;
}

int64_t quotients_by(const Graph& graph, const std::string& value) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    const auto* other = literal<TensorArgument>(node, "other");
    return node.op.starts_with("aten::div") && other != nullptr && other->name == value;
  });
}

}  // namespace

LossShares::LossShares(const Model& model, const Plan& plan, const std::string& average,
                       int64_t gradient_accumulation)
    : samples_(samples_of(model.graph)), by_labels_(average == "labels") {
  const bool splits = plan.stages.back().splits();
  if (!splits && !by_labels_) return;
  look_at_loss(model, plan, splits);
  if (by_labels_) check_rounds(plan, gradient_accumulation);
  if (counts_samples_only(loss_.denominator)) by_labels_ = false;  // minibatches are of equal size
  counts_ = true;
  std::set<int64_t> sizes = {samples_};
  for (const SampleRange& range : sample_ranges(samples_, plan.stages.back().split))
    sizes.insert(range.size());
  find_what_counts(model.graph, plan);
  for (const int64_t size : sizes) {
    Graph graph = graph_of_part(model, plan, size);
    graph.autocast.reset();
    for (const std::string& name : fields_)
      if (const int64_t d = sample_dimension(model.graph, graph, name); d != SampleSplit::kWhole)
        dimensions_[name] = d;
    segments_[size] = std::make_unique<const Segment>(graph, makers_of(graph, values_), values_);
  }
}

LossShares::~LossShares() = default;

void LossShares::look_at_loss(const Model& model, const Plan& plan, bool splits) {
  std::set<int64_t> sizes;
  for (const SampleRange& range : sample_ranges(samples_, plan.stages.back().split))
    sizes.insert(range.size());
  sizes.erase(samples_);
  if (sizes.empty()) sizes.insert(samples_ > 2 ? samples_ - 1 : samples_ + 1);
  if (model.fixed_batch || !model.graph_for) {
    throw PlanError(
        asked(splits) + "the model runs with " + std::to_string(samples_) +
            " samples and no other number, so what its loss divides by is not to be seen",
        std::string(way_out(splits)) + " Or export the model with a batch dimension that is dynamic.");
  }
  // Where whole minibatches come to the last stage, what earlier ones make of them belongs to the loss, too.
  std::vector<size_t> nodes(model.graph.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  if (splits) nodes = partition(model.graph, plan).back().nodes;
  for (const int64_t size : sizes) {
    const Graph part = graph_of_part(model, plan, size);
    const BatchAnalysis found = analyse_batch(model.graph, part, nodes, /*samples_meet=*/!splits);
    const auto loss = found.values.find(model.graph.outputs[0]);
    if (loss == found.values.end())
      throw PlanError(asked(splits) + "its loss is made by an earlier stage",
                      "Give the last stage the node of the loss.");
    loss_ = loss->second;
    divisor_.clear();
    for (const DenominatorFactor& factor : loss_.denominator)
      divisor_ += (divisor_.empty() ? "" : " times ") + text_of(factor);
    if (by_labels_) check_divisors_add_up(found);
    if (loss_.is_linear()) continue;
    throw PlanError(
        asked(splits) + "the loss is no sum or mean of terms of one sample each: " +
            (loss_.is(BatchRelation::Kind::kMixed) ? loss_.why : "it does not depend on the samples"),
        way_out(splits));
  }
  if (by_labels_ && loss_.is(BatchRelation::Kind::kSum))
    throw PlanError(asked(false) + "the loss is a sum over samples, which divides by nothing",
                    kByMinibatches);
}

// Of an update the sum over its minibatches is divided by, so that has to be what all of them as one would
// count.
void LossShares::check_divisors_add_up(const BatchAnalysis& found) const {
  int64_t of_minibatches = 0;  // factors that are not the same for all minibatches
  for (const DenominatorFactor& factor : loss_.denominator) {
    if (factor.kind == FactorKind::kSamples) continue;
    ++of_minibatches;
    if (factor.kind != FactorKind::kValue) continue;
    const auto value = found.values.find(factor.value);
    const bool adds_up = value != found.values.end() && value->second.is_linear() &&
                         counts_samples_only(value->second.denominator);
    if (adds_up) continue;
    throw PlanError(asked(false) + "the loss divides by '" + factor.value +
                        "', and of several minibatches that is not the sum of what each has",
                    kByMinibatches);
  }
  if (of_minibatches > 1)
    throw PlanError(asked(false) + "the loss divides by " + divisor_ +
                        ", and products of several minibatches do not add up",
                    kByMinibatches);
}

void LossShares::check_rounds(const Plan& plan, int64_t gradient_accumulation) const {
  const PipelineShape shape = shape_of(plan, gradient_accumulation);
  const int64_t last = StageTurns(shape, shape.stages() - 1).round_length();
  for (int64_t s = shape.frozen_stages; s < shape.stages(); ++s) {
    const int64_t length = StageTurns(shape, s).round_length();
    if (length == last) continue;
    throw PlanError("loss_average 'labels': stage " + std::to_string(s) + " makes an update from " +
                        std::to_string(length) + " minibatches, the last stage from " + std::to_string(last) +
                        ", so there is no one number of labels of an update",
                    "Take weights flush or 2bw (a schedule with `microbatches`), or stages of equal "
                    "replicas; or leave out "
                    "--loss-average.");
  }
}

void LossShares::find_what_counts(const Graph& graph, const Plan& plan) {
  const bool splits = plan.stages.back().splits();
  const auto stages = partition(graph, plan);
  std::set<std::string> tables;
  for (const DenominatorFactor& factor : loss_.denominator) {
    if (factor.kind == FactorKind::kValue)
      divides_several_ = divides_several_ || quotients_by(graph, factor.value) > 1;
    if (!factor.value.empty()) values_.push_back(factor.value);
    if (factor.weights.empty()) continue;
    if (graph.values.count(factor.weights) > 0)
      values_.push_back(factor.weights);
    else
      tables.insert(factor.weights);
  }
  std::vector<std::string> read = reads_of(graph, makers_of(graph, values_));
  read.insert(read.end(), values_.begin(), values_.end());
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const std::string& name : read) {
    if (has(graph.inputs, name)) {
      if (!has(fields_, name)) fields_.push_back(name);
    } else if (graph.values.count(name) == 0) {
      tables.insert(name);
    }
  }
  tables_.assign(tables.begin(), tables.end());
  const auto known = reads_of(graph, stages.back().nodes);
  for (const auto* names : {&fields_, &tables_}) {
    for (const std::string& name : *names) {
      if (has(known, name) || (names == &fields_ && !splits)) continue;
      throw PlanError(asked(splits) + "`" + name +
                          "`, by which the loss of a part counts, is read by an earlier stage only",
                      "Give the node that reads `" + name + "` to the last stage. Or: " + way_out(splits));
    }
  }
}

double LossShares::count(const LossFields& minibatch, SampleRange part) const {
  const at::NoGradGuard no_grad;
  const Segment& segment = *segments_.at(part.size());
  std::vector<at::Tensor> inputs;
  for (const std::string& name : segment.inputs()) {
    const auto d = dimensions_.find(name);
    inputs.push_back(rows_of(minibatch.at(name), d == dimensions_.end() ? SampleSplit::kWhole : d->second,
                             {0, samples_}, part));
  }
  const auto named = [&](const std::vector<std::string>& names) {
    std::vector<at::Tensor> tensors;
    for (const std::string& name : names) tensors.push_back(minibatch.at(name));
    return tensors;
  };
  const auto values =
      segment.forward(std::move(inputs), named(segment.parameters()), named(segment.buffers()), {});
  const auto tensor = [&](const std::string& name) {
    const auto found = std::find(values_.begin(), values_.end(), name);
    return found == values_.end() ? minibatch.at(name) : values[static_cast<size_t>(found - values_.begin())];
  };
  double count = 1;
  for (const DenominatorFactor& factor : loss_.denominator) count *= number_of(factor, part.size(), tensor);
  return count;
}

double LossShares::share(const LossFields& minibatch, SampleRange part) const {
  if (part.size() == samples_) return 1;
  return count(minibatch, part) / count(minibatch);
}

}  // namespace pipewright
