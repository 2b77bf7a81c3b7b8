// What a value of a graph is to the samples of a minibatch: the words of the analysis in
// models/run/batch_analysis.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// By what a mean over samples is divided: the product of factors. Each can be known from the fields of a
/// minibatch, without the model.
struct DenominatorFactor {
  enum class Kind {
    kSamples,  ///< the number of samples
    kValue,    ///< value `value` of the graph, one number
    kLabels,   ///< elements of `value` that are not `ignored`; with `weights`: the sum of weights[element]
               ///< over them
  } kind = Kind::kSamples;
  std::string value;
  int64_t ignored = 0;
  std::string weights;  ///< a parameter or buffer, or empty
  bool operator==(const DenominatorFactor&) const = default;
};
using Denominator = std::vector<DenominatorFactor>;

/// Let t(i) be terms of sample i alone. Whatever part of the minibatch a graph is run on, a value of it is
/// ...
struct BatchRelation {
  enum class Kind {
    kWhole,    ///< the same, to the bit
    kRows,     ///< its elements at place i of the samples are t(i)
    kPlaces,   ///< its elements at place i of the samples are i: for looking up rows
    kSum,      ///< the sum of t(i) over the samples; 0 of none
    kAverage,  ///< that, divided by `denominator`
    kMixed,    ///< nothing of this: `why`
  } kind = Kind::kWhole;
  /// kRows, kPlaces: dimension `dimension` has outer * samples * inner places; place (o * samples + i) *
  /// inner + j is sample i's.
  int64_t dimension = 0, outer = 1, inner = 1;
  Denominator denominator;
  std::string why;  ///< "node 'x' (aten::cumsum) ..."

  static BatchRelation whole() { return {}; }
  static BatchRelation rows(int64_t dimension, int64_t outer = 1, int64_t inner = 1) {
    return {Kind::kRows, dimension, outer, inner, {}, {}};
  }
  static BatchRelation sum() { return {Kind::kSum, 0, 1, 1, {}, {}}; }
  static BatchRelation average(Denominator denominator) {
    return {Kind::kAverage, 0, 1, 1, std::move(denominator), {}};
  }
  static BatchRelation mixed(std::string why) { return {Kind::kMixed, 0, 1, 1, {}, std::move(why)}; }

  bool is(Kind of) const { return kind == of; }
  bool has_rows() const { return kind == Kind::kRows || kind == Kind::kPlaces; }
  /// A sum of terms, divided or not: a sum of such values, and their product with what is whole, is one too.
  bool is_linear() const { return kind == Kind::kSum || kind == Kind::kAverage; }
  bool operator==(const BatchRelation&) const = default;
};

}  // namespace pipewright
