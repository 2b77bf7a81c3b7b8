// Rules of operators that compute.
#include <algorithm>

#include "models/run/batch_rule_kinds.h"

namespace pipewright {
namespace {

using Kind = BatchRelation::Kind;

Denominator samples_denominator() { return {DenominatorFactor{}}; }

std::string reads_sums(const BatchOperand& operand) {
  return "computes with '" + operand.name + "', which is a " +
         (operand.relation.is(Kind::kSum) ? "sum" : "mean") + " over samples";
}

// Of a mean over samples, or over labels: those of the parts are those of all.
bool shares_add_up(const BatchRelation& relation) {
  return relation.denominator.size() == 1 && relation.denominator[0].kind != DenominatorFactor::Kind::kValue;
}

bool any_linear(const std::vector<BatchOperand>& operands) {
  return std::any_of(operands.begin(), operands.end(),
                     [](const BatchOperand& each) { return each.relation.is_linear(); });
}

// The relation of a sum, a product or a quotient of which an operand is a sum over samples.
BatchRelations of_sums(const BatchCall& call, Linearity linearity) {
  const auto operands = call.operands();
  const auto found = std::find_if(operands.begin(), operands.end(),
                                  [](const BatchOperand& each) { return each.relation.is_linear(); });
  const BatchRelation& first = found->relation;
  if (linearity == Linearity::kNone) return mixes(reads_sums(*found));
  if (linearity == Linearity::kSelf) return {call.operand("self")->relation};
  for (const BatchOperand& each : operands)
    if (each.relation.has_rows()) return mixes(reads_sums(*found) + ", for every sample");
  if (linearity == Linearity::kAdds) {
    // What is the same for all parts counts once in the minibatch where the parts' shares add up to one.
    const bool with_number = operands.size() == 1;
    for (const BatchOperand& each : operands)
      if (!(each.relation == first) && !(each.relation.is(Kind::kWhole) && shares_add_up(first)))
        return mixes("adds sums over samples that are divided by different things");
    if (with_number && !shares_add_up(first)) return mixes("adds a number to a sum over samples");
    return {first};
  }
  const auto sums = std::count_if(operands.begin(), operands.end(),
                                  [](const BatchOperand& each) { return each.relation.is_linear(); });
  if (linearity == Linearity::kMultiplies)
    return sums == 1 ? BatchRelations{first} : mixes("multiplies sums over samples");
  if (call.argument("rounding_mode") != nullptr) return mixes(reads_sums(*found));
  // A quotient: by what the fields alone say, it is a mean; the other way round it is none.
  const BatchOperand above = *call.operand("self");
  if (!above.relation.is_linear()) return mixes("divides by '" + found->name + "', a sum over samples");
  const auto below = call.operand("other");
  if (!below || below->relation.is(Kind::kWhole)) return {above.relation};
  if (!below->of_fields || below->rank() > 0)
    return mixes("divides by '" + below->name + "', a sum over samples that the model makes");
  Denominator denominator = above.relation.denominator;
  denominator.push_back({DenominatorFactor::Kind::kValue, below->name, 0, {}});
  return {BatchRelation::average(std::move(denominator))};
}

// loss / samples, where that number is written into the graph.
BatchRelations divided_by_samples(const BatchCall& call, Linearity linearity) {
  const auto number_of = [](const Node& node) -> double {
    for (const auto& [key, value] : node.arguments) {
      if (key != "other") continue;
      if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
      if (const auto* real = std::get_if<double>(&value)) return *real;
    }
    return 0;
  };
  const double whole = number_of(call.whole), part = number_of(call.part);
  const bool counts =
      whole * static_cast<double>(call.part_samples) == part * static_cast<double>(call.samples);
  const auto self = call.operand("self");
  if (linearity != Linearity::kDivides || !counts || whole == 0 || !self || !self->relation.is(Kind::kSum) ||
      call.argument("rounding_mode") != nullptr)
    return {};
  return {BatchRelation::average(samples_denominator())};
}

std::vector<int64_t> places_of(std::vector<int64_t> dimensions, int64_t rank) {
  for (int64_t& d : dimensions) d = from_front(d, rank);
  return dimensions;
}

bool contains(const std::vector<int64_t>& dimensions, int64_t d) {
  return std::find(dimensions.begin(), dimensions.end(), d) != dimensions.end();
}

// Of a loss with a row for each sample.
BatchRelations reduced(const BatchCall& call, BatchRelations rows, Denominator denominator) {
  const int64_t reduction = call.integer("reduction").value_or(1);
  if (reduction == 0 || !rows[0].has_rows()) return rows;
  if (reduction == 2) return {BatchRelation::sum()};
  return {BatchRelation::average(std::move(denominator))};
}

BatchOperand first_operand(const BatchCall& call) {
  for (const char* name : {"self", "input", "theta"})
    if (const auto found = call.operand(name)) return *found;
  return call.operands().at(0);
}

// The operands behind the first, which all samples read.
std::string not_shared(const BatchCall& call, const BatchOperand& first) {
  for (const BatchOperand& each : call.operands())
    if (each.name != first.name && !each.relation.is(Kind::kWhole))
      return "reads '" + each.name + "' for all samples";
  return {};
}

}  // namespace

BatchRelations mixes(std::string why) { return {BatchRelation::mixed(std::move(why))}; }

int64_t from_front(int64_t dimension, int64_t rank) { return dimension < 0 ? dimension + rank : dimension; }

std::string along(int64_t dimension) {
  return "dimension " + std::to_string(dimension) + ", which counts samples";
}

Aligned aligned(const std::vector<BatchOperand>& operands) {
  Aligned found;
  for (const BatchOperand& each : operands) {
    if (!each.relation.has_rows()) continue;
    const int64_t from_back = each.rank() - 1 - each.relation.dimension;
    if (found.rows && (from_back != found.from_back || each.relation.outer != found.outer ||
                       each.relation.inner != found.inner))
      found.why = "brings every sample together with every other";
    found = {true, from_back, each.relation.outer, each.relation.inner, found.why};
  }
  for (const BatchOperand& each : operands) {
    if (!found.rows || !each.relation.is(Kind::kWhole) || each.rank() <= found.from_back) continue;
    if (each.whole[static_cast<size_t>(each.rank() - 1 - found.from_back)] != 1)
      found.why = "reads '" + each.name + "' by the place of a sample in the minibatch";
  }
  return found;
}

BatchRelations element_by_element(const BatchCall& call, Linearity linearity) {
  if (const std::string literal = call.differing_literal(); !literal.empty()) {
    if (auto divided = divided_by_samples(call, linearity); !divided.empty()) return divided;
    return mixes("has another " + literal + " for other numbers of samples");
  }
  auto operands = call.operands();
  if (linearity == Linearity::kSelf) operands = {*call.operand("self")};
  if (any_linear(operands)) return of_sums(call, linearity);
  if (linearity == Linearity::kSelf) return {operands[0].relation};
  for (const BatchOperand& each : operands)
    if (each.relation.is(Kind::kMixed)) return {each.relation};
  const Aligned samples = aligned(operands);
  if (!samples.why.empty()) return mixes(samples.why);
  return {samples.relation(call.output().rank())};
}

BatchRelations looks_up_in_tables(const BatchCall& call) {
  const BatchOperand self = first_operand(call);
  if (self.relation.is_linear()) return mixes(reads_sums(self));
  if (const std::string why = not_shared(call, self); !why.empty()) return mixes(why);
  return {self.relation};
}

BatchRelations draws(const BatchCall& call) {
  const BatchOperand made = call.output();
  const auto relation = relation_of_shapes(made.whole, made.part, call.samples, call.part_samples);
  if (!relation || !relation->has_rows())
    return mixes("draws numbers for all samples, other ones in each part");
  for (const BatchOperand& each : call.operands())
    if (each.relation.is_linear()) return mixes(reads_sums(each));
  const auto self = call.operand("self");
  return {self && self->relation.is(Kind::kRows) ? self->relation : *relation};
}

BatchRelations makes_of_shape(const BatchCall& call) {
  for (const char* value : {"fill_value", "s"}) {
    const auto given = call.operand(value);
    if (given && !given->relation.is(Kind::kWhole)) return mixes("fills with '" + given->name + "'");
    if (call.differing_literal() == value) return mixes("makes another number for other numbers of samples");
  }
  const BatchOperand made = call.output();
  const auto self = call.operand("self");
  if (self && self->relation.is(Kind::kRows) && self->whole == made.whole) return {self->relation};
  const auto relation = relation_of_shapes(made.whole, made.part, call.samples, call.part_samples);
  return relation ? BatchRelations{*relation} : mixes("makes a tensor for pairs of samples");
}

BatchRelations counts_up(const BatchCall& call) {
  const BatchOperand made = call.output();
  if (made.whole == made.part) return {BatchRelation::whole()};
  const auto begin = call.integer("start").value_or(0);
  if (made.whole.at(0) != call.samples || begin != 0 || call.integer("step").value_or(1) != 1)
    return mixes("counts along the samples");
  BatchRelation places = BatchRelation::rows(0);
  places.kind = Kind::kPlaces;
  return {places};
}

BatchRelations reduces(const BatchCall& call, Reduction reduction) {
  const BatchOperand self = first_operand(call);
  if (self.relation.is_linear()) {
    const bool keeps = reduction != Reduction::kOther && call.differing_literal().empty();
    return keeps ? BatchRelations{self.relation} : mixes(reads_sums(self));
  }
  if (!self.relation.has_rows()) return {self.relation};
  const int64_t d = self.relation.dimension;
  auto dimensions = places_of(call.integers("dim").value_or(std::vector<int64_t>{}), self.rank());
  if (dimensions.empty() || contains(dimensions, d)) {
    if (reduction == Reduction::kSum) return {BatchRelation::sum()};
    if (reduction == Reduction::kMean) return {BatchRelation::average(samples_denominator())};
    return mixes("computes one value over " + along(d));
  }
  BatchRelation relation = self.relation;
  if (!call.flag("keepdim", false))
    relation.dimension -=
        std::count_if(dimensions.begin(), dimensions.end(), [&](int64_t at) { return at < d; });
  return {relation};
}

BatchRelations runs_along(const BatchCall& call, const std::string& argument,
                          std::vector<int64_t> otherwise) {
  const BatchOperand self = first_operand(call);
  if (self.relation.is_linear()) return mixes(reads_sums(self));
  if (const std::string why = not_shared(call, self); !why.empty()) return mixes(why);
  auto dimensions = call.integers(argument).value_or(std::move(otherwise));
  dimensions = places_of(std::move(dimensions), self.rank());
  if (dimensions.empty() || contains(dimensions, self.relation.dimension))
    return mixes("computes along " + along(self.relation.dimension));
  return {self.relation};
}

BatchRelations works_on_last(const BatchCall& call, int64_t dimensions) {
  const BatchOperand self = first_operand(call);
  if (self.relation.is_linear()) return mixes(reads_sums(self));
  if (const std::string why = not_shared(call, self); !why.empty()) return mixes(why);
  if (self.relation.dimension >= self.rank() - dimensions)
    return mixes("computes along " + along(self.relation.dimension));
  return {self.relation};
}

BatchRelations works_on_samples(const BatchCall& call) {
  for (const BatchOperand& each : call.operands()) {
    if (each.relation.is_linear()) return mixes(reads_sums(each));
    if (each.relation.has_rows() && each.relation.dimension != 0)
      return mixes("computes along " + along(each.relation.dimension));
  }
  const BatchOperand first = first_operand(call);
  if (!first.relation.has_rows()) return mixes("reads what differs between samples for all of them");
  // Without a dimension for them the first is that of channels.
  const bool convolution = call.whole.op.find("conv") != std::string::npos;
  const auto weight = call.operand("weight");
  if (convolution && (!weight || weight->rank() != first.rank())) return mixes("convolves along the samples");
  const bool shared = call.whole.op != "aten::grid_sampler";
  if (shared)
    if (const std::string why = not_shared(call, first); !why.empty()) return mixes(why);
  for (const BatchOperand& each : call.operands())
    if (each.relation.has_rows() && !(each.relation == first.relation))
      return mixes("brings samples together with others");
  return {first.relation};
}

BatchRelations normalises_batch(const BatchCall& call) {
  const BatchOperand self = first_operand(call);
  if (call.flag("training", false) || !call.operand("running_mean"))
    return mixes("takes statistics of the whole minibatch");
  if (self.relation.is_linear()) return mixes(reads_sums(self));
  if (const std::string why = not_shared(call, self); !why.empty()) return mixes(why);
  if (self.relation.dimension == 1) return mixes("computes along " + along(1));
  return {self.relation};
}

BatchRelations normalises_instances(const BatchCall& call) {
  if (call.operand("running_mean") && call.flag("use_input_stats", true))
    return mixes("takes statistics of the whole minibatch");
  return works_on_samples(call);
}

BatchRelations recurs(const BatchCall& call) {
  const BatchOperand input = first_operand(call);
  const int64_t at = call.flag("batch_first", false) ? 0 : 1;
  if (input.rank() != 3 || !input.relation.has_rows() || input.relation.dimension != at)
    return mixes("takes samples for steps in time");
  std::vector<BatchOperand> states = call.operands("hx");
  if (const auto one = call.operand("hx")) states.push_back(*one);
  for (const BatchOperand& state : states)
    if (!state.relation.has_rows() || state.relation.dimension != 1 || state.relation.inner != 1 ||
        state.relation.outer != 1)
      return mixes("begins with '" + state.name + "' by the place of a sample in the minibatch");
  BatchRelations relations = {input.relation};
  for (size_t i = 1; i < call.whole.outputs.size(); ++i) relations.push_back(BatchRelation::rows(1));
  return relations;
}

BatchRelations multiplies_matrices(const BatchOperand& a, const BatchOperand& b, int64_t rank) {
  // As broadcast: a vector has no rows, or no columns.
  const bool a_rows = a.relation.has_rows(), b_rows = b.relation.has_rows();
  const int64_t a_from_back = a_rows ? a.rank() - 1 - a.relation.dimension : -1;
  const int64_t b_from_back = b_rows ? b.rank() - 1 - b.relation.dimension : -1;
  if (a_rows && a_from_back == 0) return mixes("adds up products over " + along(a.relation.dimension));
  if (b_rows && (b_from_back == 1 || b.rank() == 1))
    return mixes("adds up products over " + along(b.relation.dimension));
  const bool a_line = a_rows && a_from_back == 1, b_line = b_rows && b_from_back == 0;
  if (a_line || b_line) {
    if (a_rows && b_rows) return mixes("brings every sample together with every other");
    const BatchOperand& of = a_line ? a : b;
    // A product with a vector has no dimension for it.
    const int64_t behind = a_line && b.rank() > 1 ? 1 : 0;
    return {BatchRelation::rows(rank - 1 - behind, of.relation.outer, of.relation.inner)};
  }
  std::vector<BatchOperand> batches = {a, b};
  const Aligned samples = aligned(batches);
  if (!samples.why.empty()) return mixes(samples.why);
  const int64_t missing = (a.rank() == 1 ? 1 : 0) + (b.rank() == 1 ? 1 : 0);
  return {BatchRelation::rows(rank - 1 - samples.from_back + missing, samples.outer, samples.inner)};
}

BatchRelations adds_product(const BatchCall& call, const std::string& a, const std::string& b) {
  const auto left = call.operand(a);
  auto right = call.operand(b);
  const auto operands = call.operands();
  if (!left || !right) return mixes("has no '" + (left ? b : a) + "'");
  if (any_linear(operands))
    return mixes(reads_sums(*std::find_if(operands.begin(), operands.end(),
                                          [](const auto& x) { return x.relation.is_linear(); })));
  if (call.whole.op == "aten::linear") {
    if (!right->relation.is(Kind::kWhole)) return mixes("reads '" + right->name + "' for all samples");
    std::reverse(right->whole.begin(), right->whole.end());
    std::reverse(right->part.begin(), right->part.end());
  }
  const int64_t rank = call.output().rank();
  const BatchRelation whole = BatchRelation::whole();
  const bool product_is_whole = left->relation == whole && right->relation == whole;
  BatchRelations made = product_is_whole ? BatchRelations{whole} : multiplies_matrices(*left, *right, rank);
  if (made[0].is(Kind::kMixed)) return made;
  // What is added to it.
  std::vector<BatchOperand> terms = {call.output()};
  terms[0].relation = made[0];
  for (const BatchOperand& each : operands)
    if (each.name != left->name && each.name != right->name) terms.push_back(each);
  const Aligned samples = aligned(terms);
  if (!samples.why.empty()) return mixes(samples.why);
  return {samples.relation(rank)};
}

BatchRelations sums_by_equation(const BatchCall& call) {
  const Argument* given = call.argument("equation");
  const auto* text = given == nullptr ? nullptr : std::get_if<std::string>(given);
  if (text == nullptr || text->find('.') != std::string::npos)
    return mixes("has dimensions without a letter");
  std::vector<std::string> letters(1);
  std::string out;
  bool behind = false;
  for (size_t i = 0; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == '-' || c == '>')
      behind = true;
    else if (c == ',')
      letters.emplace_back();
    else if (c != ' ')
      (behind ? out : letters.back()) += c;
  }
  const auto operands = call.operands("tensors");
  if (!behind || operands.size() != letters.size()) return mixes("does not say what its result is");
  char samples = 0;
  BatchRelation rows;
  for (size_t i = 0; i < operands.size(); ++i) {
    const BatchRelation& relation = operands[i].relation;
    if (relation.is_linear()) return mixes(reads_sums(operands[i]));
    if (!relation.has_rows()) continue;
    const char letter = letters[i].at(static_cast<size_t>(relation.dimension));
    if (samples != 0 && (letter != samples || relation.outer != rows.outer || relation.inner != rows.inner))
      return mixes("brings every sample together with every other");
    samples = letter;
    rows = relation;
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool counts = letters[i].find(samples) != std::string::npos;
    if (!operands[i].relation.has_rows() && counts)
      return mixes("reads '" + operands[i].name + "' by the place of a sample in the minibatch");
    if (letters[i].find(samples) != letters[i].rfind(samples)) return mixes("takes a diagonal of samples");
  }
  const size_t at = out.find(samples);
  if (at == std::string::npos) return {BatchRelation::sum()};
  return {BatchRelation::rows(static_cast<int64_t>(at), rows.outer, rows.inner)};
}

BatchRelations attends(const BatchCall& call) {
  const auto operands = call.operands();
  if (any_linear(operands)) return mixes("attends to sums over samples");
  const Aligned samples = aligned(operands);
  if (!samples.why.empty()) return mixes(samples.why);
  if (samples.from_back < 2) return mixes("attends from every sample to the others");
  return {samples.relation(call.output().rank())};
}

BatchRelations loss_of_elements(const BatchCall& call) {
  const auto operands = call.operands();
  if (any_linear(operands)) return mixes("takes a loss of sums over samples");
  const Aligned samples = aligned(operands);
  if (!samples.why.empty()) return mixes(samples.why);
  int64_t rank = 0;
  for (const BatchOperand& each : operands) rank = std::max(rank, each.rank());
  return reduced(call, {samples.relation(rank)}, samples_denominator());
}

BatchRelations loss_of_rows(const BatchCall& call) {
  BatchRelation rows;
  for (const BatchOperand& each : call.operands()) {
    if (each.relation.is_linear()) return mixes("takes a loss of sums over samples");
    if (!each.relation.has_rows()) continue;
    if (each.relation.dimension != 0 || (rows.has_rows() && !(rows == each.relation)))
      return mixes("computes along " + along(each.relation.dimension));
    rows = each.relation;
  }
  for (const BatchOperand& each : call.operands())
    if (each.relation.is(Kind::kWhole) && each.rank() > 0 && call.argument("weight") == nullptr)
      return mixes("reads '" + each.name + "' by the place of a sample in the minibatch");
  return reduced(call, {rows}, samples_denominator());
}

BatchRelations loss_of_classes(const BatchCall& call) {
  const auto scores = call.operand("self");
  const auto target = call.operand("target");
  if (!scores || !target) return mixes("has no scores or no labels");
  for (const BatchOperand& each : call.operands())
    if (each.relation.is_linear()) return mixes("takes a loss of sums over samples");
  const auto weight = call.operand("weight");
  if (weight && !weight->relation.is(Kind::kWhole)) return mixes("weighs classes by the samples");
  if (scores->rank() < 2 || !scores->relation.has_rows() || scores->relation.dimension != 0)
    return mixes("takes samples for classes");
  if (!target->relation.has_rows() || !(target->relation == scores->relation))
    return mixes("reads labels by the place of a sample in the minibatch");
  Denominator denominator = samples_denominator();
  const bool needs_labels = !target->is_floating && call.integer("reduction").value_or(1) == 1;
  if (needs_labels) {
    if (!target->of_fields)
      return mixes("divides by a number of labels that the model makes ('" + target->name + "')");
    const Argument* smoothing = call.argument("label_smoothing");
    if (weight && smoothing != nullptr && !(*smoothing == Argument(0.0)))
      return mixes(
          "smooths labels and weighs classes: labels that weigh nothing together have a loss all the same");
    if (weight && !weight->of_fields)
      return mixes("weighs classes by what is trained ('" + weight->name + "')");
    denominator = {{DenominatorFactor::Kind::kLabels, target->name,
                    call.integer("ignore_index").value_or(-100), weight ? weight->name : ""}};
  }
  return reduced(call, {scores->relation}, std::move(denominator));
}

}  // namespace pipewright
