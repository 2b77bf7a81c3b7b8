// Rules of operators that move, repeat and look up.
#include <algorithm>
#include <functional>
#include <numeric>

#include "models/run/batch_rule_kinds.h"

namespace pipewright {
namespace {

using Kind = BatchRelation::Kind;
using Shape = std::vector<int64_t>;

int64_t product_of(const Shape& shape, size_t begin, size_t end) {
  return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(begin),
                         shape.begin() + static_cast<ptrdiff_t>(end), int64_t{1}, std::multiplies<>());
}

BatchOperand self_of(const BatchCall& call) {
  for (const char* name : {"self", "input"})
    if (const auto found = call.operand(name)) return *found;
  return call.operands().at(0);
}

// Where the samples of an operand are whose elements keep their order, in a result of this shape.
BatchRelations in_order(const BatchOperand& self, const Shape& made, int64_t samples) {
  const auto d = static_cast<size_t>(self.relation.dimension);
  const int64_t inner = product_of(self.whole, d + 1, self.whole.size()) * self.relation.inner;
  int64_t behind = 1;  // elements of all dimensions behind
  for (size_t at = made.size(); at-- > 0; behind *= made[at]) {
    const int64_t extent = made[at];
    // Sample i's elements are those whose number divided by `inner`, modulo samples, is i.
    if (behind > inner || inner % behind != 0) break;
    const int64_t places = inner / behind;  // of a sample in this dimension
    if (extent % (places * samples) != 0) continue;
    BatchRelation relation = self.relation;
    relation.dimension = static_cast<int64_t>(at);
    relation.inner = places;
    relation.outer = extent / (places * samples);
    return {relation};
  }
  return mixes("deals the elements of a sample out to several");
}

// What is read of `self` at `tensors[i]` in dimension i (nothing there: all of it), as aten::index does.
BatchRelations looked_up(const BatchOperand& self, const std::vector<std::optional<BatchOperand>>& indices) {
  std::vector<BatchOperand> given;
  std::vector<int64_t> positions;
  std::optional<BatchOperand> of_places;
  const int64_t d = self.relation.dimension;
  int64_t rank = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!indices[i]) continue;
    const auto at = static_cast<int64_t>(i);
    positions.push_back(at);
    rank = std::max(rank, indices[i]->rank());
    if (indices[i]->relation.is_linear()) return mixes("looks up by a sum over samples");
    const bool places = indices[i]->relation.is(Kind::kPlaces);
    const bool own = self.relation.is(Kind::kRows) && at == d;
    if (own && places && self.relation.outer == 1 && self.relation.inner == 1) {
      of_places = indices[i];
      of_places->relation.kind = Kind::kRows;
      given.push_back(*of_places);
    } else if (own || places) {
      return mixes("takes samples by their numbers");
    } else {
      given.push_back(*indices[i]);
    }
  }
  if (positions.empty()) return {self.relation};
  const Aligned samples = aligned(given);
  if (!samples.why.empty()) return mixes(samples.why);
  const auto count = static_cast<int64_t>(positions.size());
  const bool adjacent = positions.back() - positions.front() + 1 == count;
  const int64_t begin = adjacent ? positions.front() : 0;
  if (self.relation.has_rows() && !of_places) {
    if (samples.rows) return mixes("brings every sample together with every other");
    const auto before = std::count_if(positions.begin(), positions.end(), [&](int64_t at) { return at < d; });
    BatchRelation relation = self.relation;
    relation.dimension = d - before + (d > begin || !adjacent ? rank : 0);
    return {relation};
  }
  if (!samples.rows) return {BatchRelation::whole()};
  return {BatchRelation::rows(begin + rank - 1 - samples.from_back, samples.outer, samples.inner)};
}

std::vector<std::optional<BatchOperand>> indices_of(const BatchCall& call) {
  const Argument* given = call.argument("indices");
  const auto* names = given == nullptr ? nullptr : std::get_if<TensorsArgument>(given);
  std::vector<std::optional<BatchOperand>> indices;
  if (names == nullptr) return indices;
  for (const std::string& name : names->names)
    indices.push_back(name.empty() ? std::optional<BatchOperand>() : call.operand_of(name));
  return indices;
}

bool is_linear_everywhere(const std::vector<BatchOperand>& operands) {
  return std::all_of(operands.begin(), operands.end(),
                     [&](const auto& each) { return each.relation == operands[0].relation; });
}

// `self`: nothing where it is a number.
BatchRelation expanded(const BatchCall& call, const std::optional<BatchOperand>& self,
                       const BatchOperand& made) {
  if (!self || self->relation.is(Kind::kWhole)) {
    const auto relation = relation_of_shapes(made.whole, made.part, call.samples, call.part_samples);
    return relation ? *relation : BatchRelation::mixed("makes a tensor for pairs of samples");
  }
  if (self->relation.is_linear())
    return made.whole == made.part
               ? self->relation
               : BatchRelation::mixed("gives every sample '" + self->name + "', a sum over samples");
  BatchRelation relation = self->relation;
  relation.dimension += made.rank() - self->rank();
  return relation;
}

}  // namespace

BatchRelations keeps_order(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  if (!self.relation.has_rows()) return {self.relation};
  if (call.argument("dtype") != nullptr) return mixes("takes elements for others of another size");
  return in_order(self, call.output().whole, call.samples);
}

BatchRelations permutes(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  if (!self.relation.has_rows()) return {self.relation};
  const int64_t rank = self.rank();
  BatchRelation relation = self.relation;
  std::vector<int64_t> order(static_cast<size_t>(rank));  // of the result: which dimension it was
  std::iota(order.begin(), order.end(), 0);
  const auto dims = call.integers("dims");
  const auto at = [&](int64_t d) -> int64_t& { return order.at(static_cast<size_t>(from_front(d, rank))); };
  const std::string& op = call.whole.op;
  if (op == "aten::movedim" || op == "aten::moveaxis") {
    const auto from = call.integers("source"), to = call.integers("destination");
    if (!from || !to || from->size() != 1 || to->size() != 1) return mixes("moves several dimensions");
    const int64_t moved = from_front((*from)[0], rank);
    order.erase(order.begin() + moved);
    order.insert(order.begin() + from_front((*to)[0], rank), moved);
  } else if (dims) {
    for (int64_t i = 0; i < rank; ++i)
      order[static_cast<size_t>(i)] = from_front(dims->at(static_cast<size_t>(i)), rank);
  } else if (op == "aten::numpy_T") {
    std::reverse(order.begin(), order.end());
  } else if (rank > 1) {
    const bool matrix = op == "aten::t" || op == "aten::t_";
    const auto one =
        matrix ? std::optional<int64_t>(0) : call.integer(call.argument("axis0") ? "axis0" : "dim0");
    const auto other =
        matrix ? std::optional<int64_t>(1) : call.integer(call.argument("axis1") ? "axis1" : "dim1");
    if (!one || !other) return mixes("permutes in an unknown way");
    std::swap(at(*one), at(*other));
  }
  const auto found = std::find(order.begin(), order.end(), relation.dimension);
  relation.dimension = found - order.begin();
  return {relation};
}

BatchRelations expands(const BatchCall& call) {
  const std::string& op = call.whole.op;
  return {expanded(call,
                   call.operand(op == "aten::copy_"   ? "src"
                                : op == "aten::fill_" ? "value"
                                                      : "self"),
                   call.output())};
}

BatchRelations broadcasts(const BatchCall& call) {
  BatchRelations relations;
  for (const BatchOperand& tensor : call.operands("tensors"))
    relations.push_back(expanded(call, tensor, call.output(relations.size())));
  return relations;
}

BatchRelations repeats(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  const BatchOperand made = call.output();
  if (self.relation.is(Kind::kWhole)) {
    const auto relation = relation_of_shapes(made.whole, made.part, call.samples, call.part_samples);
    return relation ? BatchRelations{*relation} : mixes("makes a tensor for pairs of samples");
  }
  if (const std::string literal = call.differing_literal(); !literal.empty())
    return mixes("has another " + literal + " for other numbers of samples");
  if (self.relation.is_linear()) return {self.relation};
  const auto d = static_cast<size_t>(self.relation.dimension);
  BatchRelation relation = self.relation;
  relation.dimension += made.rank() - self.rank();
  relation.outer *= made.whole.at(static_cast<size_t>(relation.dimension)) / self.whole[d];
  return {relation};
}

BatchRelations repeats_elements(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  const auto times = call.integer("repeats");
  const auto dim = call.integer("dim");
  if (!times || !dim || !self.relation.has_rows() || !call.differing_literal().empty())
    return mixes("repeats elements by their place in the minibatch");
  BatchRelation relation = self.relation;
  if (from_front(*dim, self.rank()) == relation.dimension) relation.inner *= *times;
  return {relation};
}

BatchRelations takes_places(const BatchCall& call, bool drops) {
  const BatchOperand self = self_of(call);
  if (self.relation.is_linear()) return {self.relation};
  const int64_t dim = from_front(call.integer("dim").value_or(0), self.rank());
  if (dim == self.relation.dimension) return mixes("takes samples by their numbers");
  BatchRelation relation = self.relation;
  if (drops && dim < relation.dimension) --relation.dimension;
  return {relation};
}

BatchRelations slices(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  const BatchOperand made = call.output();
  // All of the samples is no choice among them.
  if (made.whole == self.whole && made.part == self.part && call.integer("step").value_or(1) == 1)
    return {self.relation};
  return takes_places(call, false);
}

BatchRelations joins(const BatchCall& call) {
  const auto operands = call.operands("tensors");
  if (operands.empty()) return mixes("joins nothing");
  if (operands[0].relation.is_linear() && is_linear_everywhere(operands)) return {operands[0].relation};
  const auto rows = std::find_if(operands.begin(), operands.end(),
                                 [](const auto& each) { return each.relation.is(Kind::kRows); });
  if (rows == operands.end()) return mixes("joins sums over samples, or their places, with others");
  BatchRelation relation = rows->relation;
  const int64_t dim = from_front(call.integer("dim").value_or(0), rows->rank());
  int64_t outer = 0;
  for (const BatchOperand& each : operands) {
    if (each.rank() == 1 && each.whole[0] == 0) continue;  // nothing
    const bool same = each.relation.is(Kind::kRows) && each.relation.dimension == relation.dimension &&
                      each.relation.inner == relation.inner &&
                      (dim == relation.dimension || each.relation.outer == relation.outer);
    if (!same) return mixes("joins samples with what belongs to none");
    outer += each.relation.outer;
  }
  if (dim == relation.dimension) relation.outer = outer;
  return {relation};
}

BatchRelations stacks(const BatchCall& call) {
  const auto operands = call.operands("tensors");
  if (operands.empty() || !is_linear_everywhere(operands))
    return mixes("joins values that count samples otherwise");
  BatchRelation relation = operands[0].relation;
  const int64_t dim = from_front(call.integer("dim").value_or(0), operands[0].rank() + 1);
  if (relation.has_rows() && dim <= relation.dimension) ++relation.dimension;
  return {relation};
}

BatchRelations embeds(const BatchCall& call) {
  const auto weight = call.operand("weight");
  const auto indices = call.operand("indices");
  if (!weight || !indices || !weight->relation.is(Kind::kWhole))
    return mixes("looks up in what the samples make");
  if (call.flag("scale_grad_by_freq", false))
    return mixes("scales gradients by how often the samples look up");
  if (indices->relation.is_linear()) return mixes("looks up by a sum over samples");
  return {indices->relation};
}

BatchRelations adds_dimension(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  if (self.relation.is_linear() && call.whole.op == "aten::one_hot")
    return mixes("looks up by a sum over samples");
  return {self.relation};
}

BatchRelations selects_indices(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  const auto index = call.operand("index");
  const auto dim = call.integer("dim");
  if (!index || !dim) return mixes("has no index");
  std::vector<std::optional<BatchOperand>> indices(static_cast<size_t>(from_front(*dim, self.rank())));
  indices.emplace_back(*index);
  if (self.relation.is_linear()) return mixes("looks up in sums over samples");
  return looked_up(self, indices);
}

BatchRelations indexes(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  if (self.relation.is_linear()) return mixes("looks up in sums over samples");
  return looked_up(self, indices_of(call));
}

BatchRelations puts_indices(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  const auto values = call.operand("values");
  if (!values || self.relation.is_linear() || values->relation.is_linear())
    return mixes("writes sums over samples to places");
  if (!self.relation.is(Kind::kRows)) return mixes("writes what the samples make to places that they share");
  const auto indices = indices_of(call);
  BatchRelations places = looked_up(self, indices);
  if (places[0].is(Kind::kMixed)) return places;
  // As the values are broadcast to the places.
  int64_t rank = self.rank(), of_indices = 0;
  for (const auto& index : indices) {
    if (!index) continue;
    --rank;
    of_indices = std::max(of_indices, index->rank());
  }
  BatchOperand written;
  written.name = self.name;
  written.relation = places[0];
  written.whole.assign(static_cast<size_t>(rank + of_indices), 0);
  if (values->relation.is(Kind::kPlaces)) return mixes("writes the places of samples in a minibatch");
  const Aligned samples = aligned({written, *values});
  if (!samples.why.empty()) return mixes(samples.why);
  return {self.relation};
}

BatchRelations gathers(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  const char* const named = call.argument("indices") != nullptr ? "indices" : "index";
  const auto index = call.operand(named);
  const auto dim = call.integer("dim");
  if (!index || !dim || !self.relation.is(Kind::kRows) || !(index->relation == self.relation) ||
      index->rank() != self.rank())
    return mixes("looks up among samples");
  if (from_front(*dim, self.rank()) == self.relation.dimension)
    return mixes("takes samples by their numbers");
  for (const char* source : {"src", "value"}) {
    const auto given = call.operand(source);
    if (given && given->rank() > 0 && !(given->relation == self.relation))
      return mixes("writes among samples");
    if (given && given->rank() == 0 && !given->relation.is(Kind::kWhole))
      return mixes("writes a sum over samples");
  }
  return {self.relation};
}

BatchRelations writes_slices(const BatchCall& call) {
  const BatchOperand self = self_of(call);
  const auto dim = call.integer("dim");
  if (!dim || !self.relation.is(Kind::kRows))
    return mixes("writes what the samples make to places that they share");
  const int64_t at = from_front(*dim, self.rank());
  if (at == self.relation.dimension) return mixes("takes samples by their numbers");
  if (const auto index = call.operand("index"); index && !index->relation.is(Kind::kWhole))
    return mixes("writes to places that the samples say");
  const bool drops = call.whole.op == "aten::select_scatter";
  for (const char* source : {"src", "source"}) {
    const auto given = call.operand(source);
    if (!given) continue;
    BatchRelation expected = self.relation;
    if (drops && at < expected.dimension) --expected.dimension;
    if (!(given->relation == expected)) return mixes("writes among samples what belongs to none");
  }
  if (const auto value = call.operand("value"); value && !value->relation.is(Kind::kWhole))
    return mixes("writes a sum over samples");
  return {self.relation};
}

}  // namespace pipewright
