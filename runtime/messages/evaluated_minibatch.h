// What the rank that computes the loss tells of one minibatch of an evaluation, and what many amount to.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/summary.h"

namespace pipewright {

/// What is left of a number that travels as JSON: NaN where it is not finite. Rank 0 makes the same of its
/// own.
inline double finite_or_nan(double value) {
  return std::isfinite(value) ? value : std::numeric_limits<double>::quiet_NaN();
}

/// What a model answers to one sample of a data set of questions.
struct JudgedAnswer {
  int64_t question = 0;  ///< several samples may ask the same one: windows of a long text
  double score =
      0;  ///< the model's own; of the answers to a question the best counts, of equal ones the first
  double exact = 0;  ///< 1 if it is right, else 0
  double f1 = 0;     ///< 0..1
};

struct EvaluatedMinibatch {
  int64_t minibatch = 0;
  double loss = 0;
  int64_t correct = 0;
  int64_t scored = 0;  ///< labels that had scores; those that ask nothing do not count
  int64_t samples = 0;
  /// Labels whose score was among the five largest; -1: there are five classes or fewer, or no scores.
  int64_t among_five = -1;
  /// What the loss is the sum of (LossTerm in models/run/loss_terms.h). A divisor of 0: a mean of none; NaN:
  /// it is something / 0, so that of all is lost.
  struct Term {
    double value = 0;
    double divisor = 1;
    std::vector<double> counts = {};
  };
  std::vector<Term> terms = {};
  /// Of texts: sum over the scored labels of -log(probability), in nats. NaN: no text.
  double surprise = std::numeric_limits<double>::quiet_NaN();
  std::vector<JudgedAnswer> answers = {};  ///< by sample; empty: the data asks no questions

  /// As a rank tells it, without a schema: ranks of a job are of one build. Numbers that are not finite
  /// become NaN.
  Json to_json() const;
  static EvaluatedMinibatch from_json(const Json& json);
};

/// With what only texts have; NaN is written as null.
struct EvaluationResult : EvaluationSummary {
  double perplexity = std::numeric_limits<double>::quiet_NaN();  ///< exp(mean surprise of a label)
  double bleu = std::numeric_limits<double>::quiet_NaN();        ///< 0..1, of generated sequences

  /// ", exact match 80.00 %, F1 88.00 %"; "" where the data asks no question.
  std::string answers_text() const;
};

/// Adds up in the order of minibatches, so that the sums do not depend on who was first. The loss is that of
/// all as one; the mean of none is left out, whatever it is. A number that is not finite counts as NaN.
EvaluationResult summary_of(const std::map<int64_t, EvaluatedMinibatch>& minibatches);

}  // namespace pipewright
