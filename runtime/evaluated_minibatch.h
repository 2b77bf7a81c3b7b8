// What the rank that computes the loss tells of one minibatch of an evaluation, and what many amount to.
#pragma once

#include <cstdint>
#include <map>

#include "graph/json.h"
#include "graph/summary.h"

namespace pipewright {

struct EvaluatedMinibatch {
  int64_t minibatch = 0;
  double loss = 0;
  int64_t correct = 0;
  int64_t scored = 0;  ///< labels that had a score
  int64_t samples = 0;

  /// As a rank posts it to rank 0, without a schema: the two are of one build.
  Json to_json() const;
  static EvaluatedMinibatch from_json(const Json& json);
};

/// Adds up in the order of minibatches, so that the sums do not depend on who was first.
EvaluationSummary summary_of(const std::map<int64_t, EvaluatedMinibatch>& minibatches);

}  // namespace pipewright
