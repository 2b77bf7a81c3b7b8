// What an update does about the age of its gradients, a row each: corrections that go with every update rule.
// docs/semantics.md gives the formulas, models/device/step_arithmetic.h is their code. How old the gradients
// of an update are, its delay, the schedule says (runtime/stage/stage_versions.h).
//
// error-feedback   Zmushko et al., ICML 2026 (arXiv 2606.30634): for gradients that are one update old. When
//                  one comes, what the update before should have been is known, and the difference is made
//                  good. With u the rule's own change, decay and rate included, and p that of the update
//                  before: w' = w + u + (u - p), from the second update on. Its algorithms were not at hand:
//                  that the correction is one of updates (not of gradients), and keeps one tensor more, is
//                  what is reported of them; the coefficient of 1, that u has the decay in it, and that the
//                  first update after a drain is as the first of a run, were taken here.
// dc               Zheng et al., ICML 2017 (arXiv 1609.08326), DC-ASGD-c: g + lambda g g (w - w of g) stands
//                  for the gradient at w; as in the authors' own program. Lambda is constant, 0.04, MXNet's
//                  default. The paper steps by SGD; taken here: whatever rule there is gets the corrected
//                  gradient, which is clipped before and decays after. Of one update, so that one tensor
//                  does.
// pipemare-t1      Yang et al., MLSys 2021 (arXiv 1910.05124), the first of PipeMare's two parts: the rate is
//                  divided by delay^p, p falling from 1 to 0 over the first K minibatches. Not PipeMare: that
//                  keeps no old weights, its backward reads others than its forward, and T2 makes that good;
//                  here a backward reads what its forward read, and there is nothing for T2 to do. Its text
//                  was not at hand. Taken here: K is five times the warm-up, a quarter of the run where there
//                  is none; the delay is that of the update itself, in updates (the paper has one number for
//                  a stage, also in the first updates), and one of up to 1 leaves the rate as it is.
#pragma once

#include <string>
#include <vector>

#include "graph/pipeline_rules.h"
#include "graph/run.h"

namespace pipewright {

enum class DelayCorrectionKind { kNone, kErrorFeedback, kCompensation, kPipeMareRate };

struct DelayCorrectionFacts {
  DelayCorrectionKind kind;
  const char* name;
  const char* slot;    ///< a tensor of each weight's shape that it keeps beside those of the rule; null: none
  bool of_one_update;  ///< for gradients that are one update old, or none; otherwise for older ones
  const char* summary;
};
const std::vector<DelayCorrectionFacts>& delay_corrections();
std::vector<std::string> delay_correction_names();
/// InputError with the nearest name.
const DelayCorrectionFacts& delay_correction_facts(const std::string& name);

/// lambda of dc.
constexpr double kCompensation = 0.04;

/// PlanError where no plan of this weight rule has such delays as the correction of `settings` is for;
/// InputError where its `sync` averages weights beside updates.
void check_delay_correction(const UpdateSettings& settings, WeightRule weights);

/// What the correction multiplies the learning rate of an update by, whose first minibatch is `minibatch` of
/// the run's `minibatches` and whose gradients are `delay` updates old.
double rate_factor_of_delay(const UpdateSettings& settings, int64_t minibatches, int64_t minibatch,
                            int64_t delay);

}  // namespace pipewright
