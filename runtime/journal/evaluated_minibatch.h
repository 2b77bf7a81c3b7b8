// What the rank that computes the loss tells of one minibatch of an evaluation, and what many amount to.
#pragma once

#include <cstdint>
#include <limits>
#include <map>

#include "graph/json.h"
#include "graph/summary.h"

namespace pipewright {

struct EvaluatedMinibatch {
  int64_t minibatch = 0;
  double loss = 0;
  int64_t correct = 0;
  int64_t scored = 0;  ///< labels that had a score; those that ask nothing (kNoLabel) do not count
  int64_t samples = 0;
  /// Labels that the loss is the mean of: those that ask something, also where there are no scores. -1: the
  /// stage reads no labels, and the loss is the mean over the samples.
  int64_t labels = -1;
  /// Of texts: sum over the scored labels of -log(probability), in nats. NaN: no text.
  double surprise = std::numeric_limits<double>::quiet_NaN();

  /// As a rank posts it to rank 0, without a schema: the two are of one build.
  Json to_json() const;
  static EvaluatedMinibatch from_json(const Json& json);
};

/// With what only texts have; NaN is written as null.
struct EvaluationResult : EvaluationSummary {
  double perplexity = std::numeric_limits<double>::quiet_NaN();  ///< exp(mean surprise of a label)
  double bleu = std::numeric_limits<double>::quiet_NaN();        ///< 0..1, of generated sequences
};

/// Adds up in the order of minibatches, so that the sums do not depend on who was first. A minibatch's loss
/// weighs as many labels as it is the mean of; the loss of none is left out, whatever it is.
EvaluationResult summary_of(const std::map<int64_t, EvaluatedMinibatch>& minibatches);

}  // namespace pipewright
