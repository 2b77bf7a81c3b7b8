// The kinds of rules that models/run/batch_rules.cc has a table of. Each returns what relations_of() returns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/run/batch_rules.h"

namespace pipewright {

using BatchRelations = std::vector<BatchRelation>;

BatchRelations mixes(std::string why);
int64_t from_front(int64_t dimension, int64_t rank);  ///< -1 is the last one
/// The dimension in which the samples of an operand lie, for messages.
std::string along(int64_t dimension);

/// Samples as counted from the last dimension, where operands are broadcast.
struct Aligned {
  bool rows = false;  ///< some operand has rows
  int64_t from_back = 0, outer = 1, inner = 1;
  std::string why;  ///< not empty: the operands do not go together
  BatchRelation relation(int64_t rank) const {
    return rows ? BatchRelation::rows(rank - 1 - from_back, outer, inner) : BatchRelation::whole();
  }
};
/// `operands`, broadcast against each other. Linear ones do not go with rows.
Aligned aligned(const std::vector<BatchOperand>& operands);

// What a function of each element does to sums over the samples.
enum class Linearity {
  kNone,
  kSelf,  ///< of one operand: of a sum it is the sum
  kAdds,
  kMultiplies,
  kDivides
};
BatchRelations element_by_element(const BatchCall& call, Linearity linearity);
/// "self" element by element; the other operands are tables that all elements read.
BatchRelations looks_up_in_tables(const BatchCall& call);
/// Each sample's draws are its own; without a dimension of samples each part draws another.
BatchRelations draws(const BatchCall& call);
/// Made of a shape, whatever its operands.
BatchRelations makes_of_shape(const BatchCall& call);
BatchRelations counts_up(const BatchCall& call);  ///< arange

enum class Reduction { kOther, kSum, kMean };
/// Over `dim`, all without one.
BatchRelations reduces(const BatchCall& call, Reduction reduction);
/// Along `argument`, a dimension or several, `otherwise` where it is not given; places keep their number.
BatchRelations runs_along(const BatchCall& call, const std::string& argument, std::vector<int64_t> otherwise);
/// `self` or `input`, over its last `dimensions`; the other operands are the same for all samples.
BatchRelations works_on_last(const BatchCall& call, int64_t dimensions);
/// Of every sample, which dimension 0 counts, by itself.
BatchRelations works_on_samples(const BatchCall& call);
BatchRelations normalises_batch(const BatchCall& call);
BatchRelations normalises_instances(const BatchCall& call);
BatchRelations recurs(const BatchCall& call);

BatchRelations multiplies_matrices(const BatchOperand& a, const BatchOperand& b, int64_t rank);
BatchRelations adds_product(const BatchCall& call, const std::string& a, const std::string& b);
BatchRelations sums_by_equation(const BatchCall& call);
BatchRelations attends(const BatchCall& call);

// Losses: `reduction` 0 is a row each, 1 (and without) a mean, 2 a sum.
BatchRelations loss_of_elements(const BatchCall& call);
BatchRelations loss_of_rows(const BatchCall& call);
BatchRelations loss_of_classes(const BatchCall& call);

// Shapes.
BatchRelations keeps_order(const BatchCall& call);  ///< of the elements: view, squeeze, ...
BatchRelations permutes(const BatchCall& call);
BatchRelations expands(const BatchCall& call);
BatchRelations broadcasts(const BatchCall& call);  ///< `tensors` against each other
BatchRelations repeats(const BatchCall& call);
BatchRelations repeats_elements(const BatchCall& call);
/// Some of the places along `dim`; with `drops` the dimension goes.
BatchRelations takes_places(const BatchCall& call, bool drops);
BatchRelations slices(const BatchCall& call);
BatchRelations joins(const BatchCall& call);
BatchRelations stacks(const BatchCall& call);

// Lookups.
BatchRelations embeds(const BatchCall& call);
BatchRelations adds_dimension(const BatchCall& call);  ///< behind the others: one_hot
BatchRelations selects_indices(const BatchCall& call);
BatchRelations indexes(const BatchCall& call);
BatchRelations puts_indices(const BatchCall& call);
BatchRelations gathers(const BatchCall& call);
BatchRelations writes_slices(const BatchCall& call);

}  // namespace pipewright
