#include "runtime/messages/evaluated_minibatch.h"

#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>

namespace pipewright {

Json EvaluatedMinibatch::to_json() const {
  Json json;
  json["minibatch"] = minibatch;
  json["loss"] = finite_or_null(loss);
  json["correct"] = correct;
  json["scored"] = scored;
  json["samples"] = samples;
  json["among_five"] = among_five;
  for (const Term& term : terms)
    json["terms"].push_back({finite_or_null(term.value), finite_or_null(term.divisor), term.counts});
  json["surprise"] = finite_or_null(surprise);
  for (const JudgedAnswer& answer : answers)
    json["answers"].push_back({answer.question, finite_or_null(answer.score), answer.exact, answer.f1});
  return json;
}

EvaluatedMinibatch EvaluatedMinibatch::from_json(const Json& json) {
  EvaluatedMinibatch minibatch{json.at("minibatch"), number_or_nan(json.at("loss")),
                               json.at("correct"),   json.at("scored"),
                               json.at("samples"),   json.at("among_five")};
  for (const Json& term : json.at("terms"))
    minibatch.terms.push_back(
        {number_or_nan(term.at(0)), number_or_nan(term.at(1)), term.at(2).get<std::vector<double>>()});
  minibatch.surprise = number_or_nan(json.at("surprise"));
  if (json.contains("answers")) {
    for (const Json& answer : json["answers"])
      minibatch.answers.push_back({answer.at(0), number_or_nan(answer.at(1)), answer.at(2), answer.at(3)});
  }
  return minibatch;
}

namespace {

void judge(const std::map<int64_t, EvaluatedMinibatch>& minibatches, EvaluationResult& result) {
  std::map<int64_t, JudgedAnswer> best;
  for (const auto& [number, minibatch] : minibatches) {
    for (const JudgedAnswer& answer : minibatch.answers) {
      const double score = finite_or_nan(answer.score);
      const auto [found, is_first] = best.emplace(answer.question, answer);
      const double so_far = finite_or_nan(found->second.score);
      if (!is_first && (score > so_far || std::isnan(so_far))) found->second = answer;
    }
  }
  if (best.empty()) return;
  double exact = 0, f1 = 0;
  for (const auto& [question, answer] : best) {
    exact += answer.exact;
    f1 += answer.f1;
  }
  result.exact_match = exact / static_cast<double>(best.size());
  result.f1 = f1 / static_cast<double>(best.size());
}

// Of all samples as one minibatch; of none NaN.
double loss_of(const std::map<int64_t, EvaluatedMinibatch>& minibatches) {
  if (minibatches.empty()) return std::nan("");
  double loss = 0;
  const EvaluatedMinibatch& last = minibatches.rbegin()->second;
  for (size_t i = 0; i < last.terms.size(); ++i) {
    double sum = 0;
    std::vector<double> counts(last.terms[i].counts.size());
    for (const auto& [number, minibatch] : minibatches) {
      const auto& term = minibatch.terms.at(i);
      const double divisor = finite_or_nan(term.divisor);
      if (divisor != 0) sum += finite_or_nan(term.value) * divisor;
      for (size_t c = 0; c < counts.size(); ++c) counts[c] += term.counts.at(c);
    }
    const double divisor = std::accumulate(counts.begin(), counts.end(), 1.0, std::multiplies<>());
    // Where there is nothing to be averaged it is what the model says to that.
    loss += divisor != 0 ? sum / divisor : finite_or_nan(last.terms[i].value);
  }
  return loss;
}

}  // namespace

std::string EvaluationResult::answers_text() const {
  if (std::isnan(exact_match)) return "";
  char text[64];
  std::snprintf(text, sizeof(text), ", exact match %.2f %%, F1 %.2f %%", 100 * exact_match, 100 * f1);
  return text;
}

EvaluationResult summary_of(const std::map<int64_t, EvaluatedMinibatch>& minibatches) {
  EvaluationResult summary;
  int64_t correct = 0;
  int64_t scored = 0;
  int64_t among_five = 0;
  int64_t of_many_classes = 0;
  double surprise = 0;
  for (const auto& [number, minibatch] : minibatches) {
    surprise += finite_or_nan(minibatch.surprise);
    summary.samples += minibatch.samples;
    correct += minibatch.correct;
    scored += minibatch.scored;
    if (minibatch.among_five < 0) continue;
    among_five += minibatch.among_five;
    of_many_classes += minibatch.scored;
  }
  summary.loss = loss_of(minibatches);
  summary.perplexity = std::exp(surprise / static_cast<double>(scored));
  summary.top1 = scored > 0 ? static_cast<double>(correct) / static_cast<double>(scored) : std::nan("");
  if (of_many_classes > 0)
    summary.top5 = static_cast<double>(among_five) / static_cast<double>(of_many_classes);
  judge(minibatches, summary);
  return summary;
}

}  // namespace pipewright
