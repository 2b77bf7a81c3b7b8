#include "models/run/loss_terms.h"

#include <ATen/ops/ne.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "graph/graph_identity.h"
#include "models/definition/literal.h"
#include "models/run/batch_analysis.h"

namespace pipewright {
namespace {

using FactorKind = DenominatorFactor::Kind;
using Makers = std::map<std::string, const Node*>;

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
std::string sum_behind_bounds(const Makers& makers, const BatchAnalysis& found, std::string value) {
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

// Takes a loss apart at its sums, down to what is a sum or a mean over samples, or the same for all of them.
class LossTerms::Finder {
 public:
  explicit Finder(const Model& model)
      : whole_(evaluation_graph(model.graph)),
        // Twice as many samples are what a program takes that was exported for multiples of some number.
        twice_(evaluation_graph(with_batch_size(model, 2 * samples_of(model.graph)))) {
    std::vector<size_t> nodes(whole_.nodes.size());
    std::iota(nodes.begin(), nodes.end(), 0);
    found_ = analyse_batch(whole_, twice_, nodes, /*samples_meet=*/true);
    for (const Node& node : whole_.nodes)
      for (const std::string& output : node.outputs) makers_[output] = &node;
  }

  // None where it is not such a sum.
  std::vector<Term> terms() {
    const std::string& loss = whole_.outputs[0];
    if (!add(loss, 1)) return {};
    if (terms_.size() == 1 && terms_[0].value == loss) terms_[0].value.clear();
    return terms_;
  }

 private:
  bool add(const std::string& value, double factor) {
    const auto relation = found_.values.find(value);
    if (relation == found_.values.end()) return false;
    Term term{value, factor};
    if (relation->second.is(BatchRelation::Kind::kWhole)) {
      term.same = true;
    } else if (relation->second.is_linear() && !(divides_by_value(relation->second) && is_sum(value))) {
      for (const DenominatorFactor& below : relation->second.denominator) {
        Divisor divisor{below, below};
        if (below.kind == FactorKind::kValue)
          divisor.added.value = sum_behind_bounds(makers_, found_, below.value);
        if (below.kind == FactorKind::kValue && divisor.added.value.empty()) return false;
        term.divisors.push_back(std::move(divisor));
      }
    } else {
      return add_parts(value, factor);
    }
    terms_.push_back(std::move(term));
    return true;
  }

  // Of several quotients by 0 one that is 0 / 0 would hide the others.
  static bool divides_by_value(const BatchRelation& relation) {
    return std::any_of(relation.denominator.begin(), relation.denominator.end(),
                       [](const DenominatorFactor& factor) { return factor.kind == FactorKind::kValue; });
  }
  bool is_sum(const std::string& value) const {
    const auto maker = makers_.find(value);
    return maker != makers_.end() && literal<TensorArgument>(*maker->second, "other") != nullptr &&
           (maker->second->op == "aten::add" || maker->second->op == "aten::sub");
  }

  bool add_parts(const std::string& value, double factor) {
    const auto maker = makers_.find(value);
    if (maker == makers_.end()) return false;
    const Node& node = *maker->second;
    const auto* self = literal<TensorArgument>(node, "self");
    const auto* other = literal<TensorArgument>(node, "other");
    const auto number = number_named(node, "other");
    if (self == nullptr) return false;
    if (is_sum(value)) {
      const double alpha = number_named(node, "alpha").value_or(1) * (node.op == "aten::sub" ? -1 : 1);
      return add(self->name, factor) && add(other->name, factor * alpha);
    }
    if (node.op == "aten::mul" && number) return add(self->name, factor * *number);
    if (node.op == "aten::div" && number && node.arguments.size() == 2)
      return add(self->name, factor / *number);
    return false;
  }

  static std::optional<double> number_named(const Node& node, const char* name) {
    if (const auto* real = literal<double>(node, name)) return *real;
    if (const auto* integer = literal<int64_t>(node, name)) return static_cast<double>(*integer);
    return std::nullopt;
  }

  const Graph whole_, twice_;
  BatchAnalysis found_;
  Makers makers_;
  std::vector<Term> terms_;
};

LossTerms::LossTerms(const Model& model, const std::optional<Scoring>& scoring) {
  if (!model.fixed_batch && model.graph_for && !model.graph.outputs.empty()) terms_ = Finder(model).terms();
  if (terms_.empty()) {
    DenominatorFactor factor;
    if (scoring && scoring->is_mean)
      factor = {FactorKind::kLabels, scoring->targets, scoring->ignored, scoring->class_weights};
    terms_.emplace_back();
    if (!loss_is_sum(model.graph)) terms_[0].divisors = {{factor, factor}};
    terms_[0].hides = scoring && scoring->smoothed && !scoring->class_weights.empty();
  }
  std::set<std::string> reads;
  for (const Term& term : terms_) {
    reads.insert(term.value);
    for (const Divisor& divisor : term.divisors)
      reads.insert({divisor.factor.value, divisor.factor.weights, divisor.added.value});
  }
  reads.erase("");
  reads_.assign(reads.begin(), reads.end());
}

std::vector<LossTerm> LossTerms::terms_of(int64_t samples, double loss, const TensorOfName& tensor) const {
  std::vector<LossTerm> terms;
  for (const Term& term : terms_) {
    LossTerm made;
    made.value = term.value.empty() ? loss : term.factor * tensor(term.value).item().toDouble();
    if (term.same) made.counts = {1};
    for (const Divisor& divisor : term.divisors) {
      made.divisor *= number_of(divisor.factor, samples, tensor);
      made.counts.push_back(number_of(divisor.added, samples, tensor));
    }
    // Something / 0: its terms are lost.
    if (made.divisor == 0 && (term.hides || std::isinf(made.value))) made.divisor = std::nan("");
    terms.push_back(std::move(made));
  }
  return terms;
}

}  // namespace pipewright
