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

/// The loss of all samples of several minibatches is
///     sum over minibatches of (loss * divisor) / product over i of (sum over minibatches of counts[i]).
/// Of a loss that is a sum: divisor 1, no counts.
struct LossParts {
  double divisor = 1;
  std::vector<double> counts = {};
};

class LossDivisor {
 public:
  /// Of the model's loss in evaluation, by the analysis of the graph. Of a loss that it does not see through,
  /// or a model that has one number of samples only: what `scoring`, if any, divides by, or else samples.
  LossDivisor(const Model& model, const std::optional<Scoring>& scoring);

  /// Values of the graph, parameters and buffers that parts_of() asks for. The latter two never change.
  const std::vector<std::string>& reads() const { return reads_; }

  /// `tensor`: of a minibatch of so many samples.
  LossParts parts_of(int64_t samples, const TensorOfName& tensor) const;

 private:
  struct Part {
    DenominatorFactor factor;
    DenominatorFactor added;  // what counts of it: without the bounds that keep it off 0
  };
  bool find(const Model& model);

  std::vector<Part> parts_;
  std::vector<std::string> reads_;
};

}  // namespace pipewright
