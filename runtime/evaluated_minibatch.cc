#include "runtime/evaluated_minibatch.h"

#include <cmath>

namespace pipewright {

Json EvaluatedMinibatch::to_json() const {
  Json json;
  json["minibatch"] = minibatch;
  json["loss"] = finite_or_null(loss);
  json["correct"] = correct;
  json["scored"] = scored;
  json["samples"] = samples;
  return json;
}

EvaluatedMinibatch EvaluatedMinibatch::from_json(const Json& json) {
  return {json.at("minibatch"), number_or_nan(json.at("loss")), json.at("correct"), json.at("scored"),
          json.at("samples")};
}

EvaluationSummary summary_of(const std::map<int64_t, EvaluatedMinibatch>& minibatches) {
  EvaluationSummary summary;
  int64_t correct = 0;
  int64_t scored = 0;
  double loss = 0;
  for (const auto& [number, minibatch] : minibatches) {
    loss += minibatch.loss * static_cast<double>(minibatch.samples);
    summary.samples += minibatch.samples;
    correct += minibatch.correct;
    scored += minibatch.scored;
  }
  summary.loss = loss / static_cast<double>(summary.samples);
  summary.top1 = scored > 0 ? static_cast<double>(correct) / static_cast<double>(scored) : std::nan("");
  return summary;
}

}  // namespace pipewright
