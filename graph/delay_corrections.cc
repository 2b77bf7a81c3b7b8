#include "graph/delay_corrections.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/rows.h"
#include "graph/sync_rules.h"

namespace pipewright {

const std::vector<DelayCorrectionFacts>& delay_corrections() {
  using enum DelayCorrectionKind;
  static const std::vector<DelayCorrectionFacts> rows = {
      {kNone, "none", nullptr, false, "old gradients are used as they are"},
      {kErrorFeedback, "error-feedback", "previous_update", true,
       "what the update before lacked is added to the next; with 2bw"},
      {kCompensation, "dc", "last_change", true,
       "gradients are extrapolated to the latest weights; with 2bw"},
      {kPipeMareRate, "pipemare-t1", nullptr, false,
       "at first the rate is divided by the delay; with stash or vertical"}};
  return rows;
}

std::vector<std::string> delay_correction_names() { return names_of(delay_corrections()); }

const DelayCorrectionFacts& delay_correction_facts(const std::string& name) {
  return row_named(delay_corrections(), "delay_correction", name);
}

void check_delay_correction(const UpdateSettings& settings, WeightRule weights) {
  const DelayCorrectionFacts& facts = delay_correction_facts(settings.optimizer.delay_correction);
  if (facts.kind == DelayCorrectionKind::kNone) return;
  const std::string name = "delay_correction '" + std::string(facts.name) + "'";
  if (!sync_facts(settings.sync).keeps_replicas_equal) {
    throw InputError(name + " does not go with sync '" + settings.sync +
                         "': weights are averaged beside the updates that it looks at",
                     "Leave out one of the two.");
  }
  const WeightRuleFacts& rule = facts_of(weights);
  if (rule.drains()) {
    throw PlanError(name + ": the plan's weights '" + rule.name +
                        "' make every update from gradients of the latest weights, there is no delay",
                    "Leave out --delay-correction, or take a plan with other weights.");
  }
  if (rule.in_place) {
    throw PlanError(name + " is for gradients of one version of the weights; with the plan's weights '" +
                        rule.name + "' a backward reads another one than its forward",
                    "Leave out --delay-correction, or take a plan with weights stash, vertical or 2bw.");
  }
  const bool of_one_update = rule.lag == WeightLag::kInterval;
  if (facts.of_one_update && !of_one_update) {
    throw PlanError(name + " is for gradients that are one update old; the plan's weights '" + rule.name +
                        "' have stages of other delays",
                    "Take a plan with weights 2bw, or --delay-correction pipemare-t1.");
  }
  if (!facts.of_one_update && of_one_update) {
    throw PlanError(
        name + " changes nothing for gradients that are one update old; with the plan's weights '" +
            rule.name + "' none is older",
        "Take --delay-correction error-feedback or dc, or a plan with weights stash or vertical.");
  }
}

double rate_factor_of_delay(const UpdateSettings& settings, int64_t minibatches, int64_t minibatch,
                            int64_t delay) {
  const auto kind = delay_correction_facts(settings.optimizer.delay_correction).kind;
  if (kind != DelayCorrectionKind::kPipeMareRate || delay <= 1) return 1;
  const int64_t warmup = settings.learning_rate_policy.warmup_minibatches;
  const int64_t annealing = std::max<int64_t>(1, warmup > 0 ? 5 * warmup : minibatches / 4);
  const double power = 1 - std::min(1.0, static_cast<double>(minibatch) / static_cast<double>(annealing));
  return std::pow(static_cast<double>(delay), -power);
}

}  // namespace pipewright
