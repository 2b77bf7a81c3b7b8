// What a model's loss divides by, for the loss of minibatches of several sizes as that of one
// (docs/semantics.md, "What a loss divides by").
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/definition/model.h"
#include "models/definition/scoring.h"
#include "models/run/batch_relation.h"

namespace pipewright {

/// A value of the graph, a parameter or a buffer by its name, on the CPU.
using TensorOfName = std::function<at::Tensor(const std::string& name)>;

/// What the factor is of so many samples. `tensor`: asked for factor.value and factor.weights, of these
/// samples.
double number_of(const DenominatorFactor& factor, int64_t samples, const TensorOfName& tensor);

/// A loss is a sum of terms. Of all samples of several minibatches a term is
///     sum over minibatches of (value * divisor) / product over i of (sum over minibatches of counts[i]).
/// Of a term that is a sum over samples: divisor 1, no counts.
struct LossTerm {
  double value = 0;
  double divisor = 1;
  std::vector<double> counts = {};
};

class LossTerms {
 public:
  /// Of the model's loss in evaluation, by the analysis of the graph. A loss that it does not see through, or
  /// of a model that has one number of samples only, is one term, divided by what `scoring`, if any, divides
  /// by, or else samples.
  LossTerms(const Model& model, const std::optional<Scoring>& scoring);

  /// Values of the graph, parameters and buffers that terms_of() asks for. The latter two never change.
  const std::vector<std::string>& reads() const { return reads_; }

  /// `tensor`: of a minibatch of so many samples, whose loss is `loss`.
  std::vector<LossTerm> terms_of(int64_t samples, double loss, const TensorOfName& tensor) const;

 private:
  struct Divisor {
    DenominatorFactor factor;
    DenominatorFactor added;  // what counts of it: without the bounds that keep it off 0
  };
  struct Term {
    std::string value;  // of the graph; "": the loss
    double factor = 1;
    std::vector<Divisor> divisors = {};
    bool same = false;   // for every minibatch
    bool hides = false;  // 0 / 0 may be something / 0
  };
  class Finder;

  std::vector<Term> terms_;
  std::vector<std::string> reads_;
};

}  // namespace pipewright
