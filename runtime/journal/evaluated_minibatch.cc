#include "runtime/journal/evaluated_minibatch.h"

#include <cmath>

namespace pipewright {

Json EvaluatedMinibatch::to_json() const {
  Json json;
  json["minibatch"] = minibatch;
  json["loss"] = finite_or_null(loss);
  json["correct"] = correct;
  json["scored"] = scored;
  json["samples"] = samples;
  json["labels"] = labels;
  json["surprise"] = finite_or_null(surprise);
  return json;
}

EvaluatedMinibatch EvaluatedMinibatch::from_json(const Json& json) {
  return {json.at("minibatch"),
          number_or_nan(json.at("loss")),
          json.at("correct"),
          json.at("scored"),
          json.at("samples"),
          json.at("labels"),
          number_or_nan(json.at("surprise"))};
}

EvaluationResult summary_of(const std::map<int64_t, EvaluatedMinibatch>& minibatches) {
  EvaluationResult summary;
  int64_t correct = 0;
  int64_t scored = 0;
  double loss = 0;
  double weight = 0;
  double surprise = 0;
  for (const auto& [number, minibatch] : minibatches) {
    const int64_t labels = minibatch.labels >= 0 ? minibatch.labels : minibatch.samples;
    if (labels > 0) loss += minibatch.loss * static_cast<double>(labels);
    weight += static_cast<double>(labels);
    surprise += minibatch.surprise;
    summary.samples += minibatch.samples;
    correct += minibatch.correct;
    scored += minibatch.scored;
  }
  summary.loss = loss / weight;
  summary.perplexity = std::exp(surprise / static_cast<double>(scored));
  summary.top1 = scored > 0 ? static_cast<double>(correct) / static_cast<double>(scored) : std::nan("");
  return summary;
}

}  // namespace pipewright
