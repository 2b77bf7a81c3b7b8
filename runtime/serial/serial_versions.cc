#include "runtime/serial/serial_versions.h"

#include <algorithm>
#include <numeric>

namespace pipewright {

std::vector<size_t> cycle_of(const Stage& stage) {
  if (stage.split.size() > 1) return {0};  // all replicas take part in each minibatch
  const std::vector<int64_t> shares =
      stage.shares.empty() ? std::vector<int64_t>(stage.ranks.size(), 1) : stage.shares;
  const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<int64_t> gained(shares.size(), 0);
  std::vector<size_t> cycle;
  for (int64_t i = 0; i < sum; ++i) {
    for (size_t q = 0; q < shares.size(); ++q) gained[q] += shares[q];
    size_t taker = 0;
    for (size_t q = 1; q < shares.size(); ++q)
      if (gained[q] > gained[taker]) taker = q;
    gained[taker] -= sum;
    cycle.push_back(taker);
  }
  return cycle;
}

int64_t run_ahead(const std::vector<size_t>& cycle, int64_t depth) {
  const auto length = static_cast<int64_t>(cycle.size());
  const size_t replicas = 1 + *std::max_element(cycle.begin(), cycle.end());
  int64_t largest = 0;
  for (size_t q = 0; q < replicas; ++q)
    largest = std::max<int64_t>(largest, std::count(cycle.begin(), cycle.end(), q));
  int64_t ahead = (depth - 1) * length / largest;
  const auto fits = [&] {
    for (int64_t from = 0; from < length; ++from) {
      std::vector<int64_t> taken(replicas, 0);
      for (int64_t i = from; i <= from + ahead; ++i)
        if (++taken[cycle[static_cast<size_t>(i % length)]] > depth) return false;
    }
    return true;
  };
  while (ahead > 0 && !fits()) --ahead;
  return ahead;
}

std::vector<SerialRule> weight_rule_of(const Plan& plan, int64_t gradient_accumulation) {
  const bool intervals = plan.weights == "flush" || plan.weights == "2bw";
  std::vector<SerialRule> rules;
  int64_t ahead_of_first = 0;
  int64_t ahead_of_previous = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<size_t> cycle = cycle_of(plan.stages[s]);
    SerialRule rule;
    rule.round_length =
        intervals ? plan.microbatches : gradient_accumulation * static_cast<int64_t>(cycle.size());
    int64_t depth = plan.schedule == "1f1b" ? plan.stages[s].in_flight : 1;
    if (plan.stages[s].frozen) {  // there is but one version to read, and nobody it holds back
      rules.push_back(rule);
      continue;
    }
    const bool first = s == 0 || plan.stages[s - 1].frozen;
    // A stage does not run further ahead than the one before it.
    while (!first && depth > 1 && run_ahead(cycle, depth) > ahead_of_previous) --depth;
    const int64_t ahead = run_ahead(cycle, depth);
    if (first) ahead_of_first = ahead;
    ahead_of_previous = ahead;
    if (plan.weights == "stash") rule.lag = ahead;
    if (plan.weights == "vertical") rule.lag = ahead_of_first;
    if (plan.weights == "2bw") rule.lag = rule.round_length;
    if (plan.weights == "flush") rule.lag = 0;
    rule.backward_lag = rule.lag;
    if (plan.weights == "paci" || plan.weights == "predict") {
      while (plan.weights == "paci" && rule.round_length < ahead) rule.round_length *= 2;
      rule.lag = ahead;
      rule.backward_lag = 0;
      rule.predicts = plan.weights == "predict";
    }
    rules.push_back(rule);
  }
  return rules;
}

}  // namespace pipewright
