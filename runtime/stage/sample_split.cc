#include "runtime/stage/sample_split.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/graph_identity.h"
#include "models/definition/frozen.h"
#include "models/run/batch_analysis.h"
#include "runtime/stage/partition.h"

namespace pipewright {
namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "(" + text + ")";
}

// Dimensions whose extents differ.
std::vector<int64_t> differing(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> dimensions;
  if (a.size() != b.size()) return {0, 0};
  for (size_t d = 0; d < a.size(); ++d)
    if (a[d] != b[d]) dimensions.push_back(static_cast<int64_t>(d));
  return dimensions;
}

size_t first_split(const Plan& plan) {
  size_t s = 0;
  while (s < plan.stages.size() && !plan.stages[s].splits()) ++s;
  return s;
}

// A size that is not the whole one, with which graphs are compared. More than one where that can be: an
// extent of 1 may stand for itself.
int64_t other_size(const Plan& plan, int64_t samples) {
  int64_t largest = 0;
  for (const Stage& stage : plan.stages)
    if (stage.splits())
      for (const SampleRange& range : sample_ranges(samples, stage.split))
        largest = std::max(largest, range.size());
  return largest;
}

class Checker {
 public:
  Checker(const Model& model, const Plan& plan)
      : model_(model),
        plan_(plan),
        graph_(model.graph),
        samples_(samples_of(model.graph)),
        part_samples_(other_size(plan, samples_)),
        part_(graph_of_part(model, plan, part_samples_)),
        stages_(partition(model.graph, plan)),
        differentiable_(differentiable_values(model.graph)) {}

  void check() const {
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      if (plan_.stages[s].splits()) check_nodes(s);
      const bool next = s + 1 < plan_.stages.size();
      if (next && (plan_.stages[s].splits() || plan_.stages[s + 1].splits())) check_crossing(s);
    }
  }

 private:
  void check_crossing(size_t s) const {
    for (const std::string& value : stages_[s].sent) {
      const auto& whole = graph_.values.at(value).shape;
      const auto& part = part_.values.at(value).shape;
      const std::vector<int64_t> dimensions = differing(whole, part);
      if (dimensions.empty() && differentiable_.count(value) == 0) continue;
      if (dimensions.size() == 1) {
        const auto d = static_cast<size_t>(dimensions[0]);
        if (whole[d] == samples_ && part[d] == part_samples_) continue;
      }
      throw PlanError("plan: value '" + value + "' crosses from stage " + std::to_string(s) + " to stage " +
                          std::to_string(s + 1) + ", one of which has `split`, and no dimension of " +
                          text_of(whole) + " counts the " + std::to_string(samples_) +
                          " samples of a minibatch",
                      "Cut elsewhere, or leave out `split`.");
    }
  }

  void check_nodes(size_t s) const {
    std::set<int64_t> sizes;
    for (const SampleRange& range : sample_ranges(samples_, plan_.stages[s].split))
      sizes.insert(range.size());
    sizes.erase(samples_);
    const std::string at = "plan: stage " + std::to_string(s) + " has `split`, and ";
    for (const int64_t size : sizes) {
      const Graph part = graph_of_part(model_, plan_, size);
      const BatchAnalysis found = analyse_batch(graph_, part, stages_[s].nodes);
      for (const std::string& value : stages_[s].sent) {
        const auto relation = found.values.find(value);
        if (relation != found.values.end()) check_sent(at, value, relation->second);
      }
      for (const auto& [buffer, why] : found.buffers)
        throw PlanError(at + "its buffer '" + buffer +
                            "' is made of all samples of a minibatch, of which each replica has a "
                            "part: " +
                            why,
                        kTakeTurns);
    }
  }

  static void check_sent(const std::string& at, const std::string& value, const BatchRelation& relation) {
    using Kind = BatchRelation::Kind;
    const bool apart =
        relation.is(Kind::kWhole) || (relation.is(Kind::kRows) && relation.outer == 1 && relation.inner == 1);
    if (apart) return;
    throw PlanError(at + "'" + value +
                        "', which it sends, is made of several samples of a minibatch, of which each replica "
                        "has a part" +
                        (relation.is(Kind::kMixed) ? ": " + relation.why : ""),
                    kTakeTurns);
  }

  const Model& model_;
  const Plan& plan_;
  const Graph& graph_;
  int64_t samples_, part_samples_;
  Graph part_;
  std::vector<StageInterface> stages_;
  std::set<std::string> differentiable_;
};

}  // namespace

Graph graph_of_part(const Model& model, const Plan& plan, int64_t samples) {
  if (samples == samples_of(model.graph)) return model.graph;
  return frozen_graph(with_batch_size(model, samples), plan.frozen_layers);
}

void check_split_model(const Model& model, const Plan& plan) {
  const size_t split = first_split(plan);
  if (split == plan.stages.size()) return;
  if (model.fixed_batch || !model.graph_for) {
    throw PlanError("plan: stage " + std::to_string(split) + " has `split`, and the model runs with " +
                        std::to_string(samples_of(model.graph)) + " samples and no other number",
                    std::string(kTakeTurns) + " Or export the model with a batch dimension that is dynamic.");
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].splits()) continue;
    for (const SampleRange& range : sample_ranges(samples_of(model.graph), plan.stages[s].split))
      if (range.size() > 0 && range.size() < model.least_samples)
        throw PlanError("plan: stage " + std::to_string(s) + " has `split`, and a part of " +
                            std::to_string(range.size()) + " samples, and the model was exported for at least " +
                            std::to_string(model.least_samples),
                        std::string(kTakeTurns) + " Or take larger minibatches.");
  }
  Checker(model, plan).check();
}

int64_t sample_dimension(const Graph& whole, const Graph& part, const std::string& value) {
  const auto dimensions = differing(whole.values.at(value).shape, part.values.at(value).shape);
  return dimensions.size() == 1 ? dimensions[0] : SampleSplit::kWhole;
}

SampleSplit::SampleSplit(const Model& model, const Plan& plan) : samples_(samples_of(model.graph)) {
  for (const Stage& stage : plan.stages) {
    any_ = any_ || stage.splits();
    ranges_.push_back(stage.splits() ? sample_ranges(samples_, stage.split) : sample_ranges(samples_, {}));
  }
  if (!any_) return;
  const Graph part = graph_of_part(model, plan, other_size(plan, samples_));
  for (const auto& [name, type] : model.graph.values) {
    if (const int64_t d = sample_dimension(model.graph, part, name); d != kWhole) dimensions_[name] = d;
  }
}

SampleRange SampleSplit::range_of(int64_t stage, int64_t place) const {
  const auto& ranges = ranges_[static_cast<size_t>(stage)];
  return ranges.size() == 1 ? ranges[0] : ranges.at(static_cast<size_t>(place));
}

int64_t SampleSplit::dimension_of(const std::string& value) const {
  const auto known = dimensions_.find(value);
  return known == dimensions_.end() ? kWhole : known->second;
}

std::vector<int64_t> SampleSplit::dimensions_of(const std::vector<std::string>& values) const {
  std::vector<int64_t> dimensions;
  for (const std::string& value : values) dimensions.push_back(dimension_of(value));
  return dimensions;
}

std::vector<SampleSplit::Piece> SampleSplit::pieces(int64_t stage, int64_t place, int64_t other) const {
  const SampleRange own = range_of(stage, place);
  if (!splits(other)) return {{Piece::kInTurn, own}};
  std::vector<Piece> pieces;
  const auto& ranges = ranges_[static_cast<size_t>(other)];
  for (size_t q = 0; q < ranges.size(); ++q) {
    const SampleRange both = overlap(own, ranges[q]);
    if (both.size() > 0) pieces.push_back({static_cast<int64_t>(q), both});
  }
  return pieces;
}

at::Tensor rows_of(const at::Tensor& value, int64_t dimension, SampleRange of, SampleRange samples) {
  if (dimension == SampleSplit::kWhole || of == samples) return value;
  return value.narrow(dimension, samples.begin - of.begin, samples.size());
}

at::Tensor joined(const std::vector<at::Tensor>& pieces, int64_t dimension) {
  if (pieces.size() == 1 || dimension == SampleSplit::kWhole) return pieces.at(0);
  std::vector<int64_t> sizes = pieces[0].sizes().vec();
  sizes[static_cast<size_t>(dimension)] = 0;
  for (const at::Tensor& piece : pieces) sizes[static_cast<size_t>(dimension)] += piece.size(dimension);
  const at::NoGradGuard no_grad;
  const at::Tensor whole =
      unflattened(at::empty(sizes, pieces[0].options().requires_grad(false)), memory_order(pieces[0]));
  int64_t begin = 0;
  for (const at::Tensor& piece : pieces) {
    whole.narrow(dimension, begin, piece.size(dimension)).copy_(piece);
    begin += piece.size(dimension);
  }
  return whole;
}

}  // namespace pipewright
