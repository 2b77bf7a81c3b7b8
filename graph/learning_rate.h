// The learning rate of every update: warm-up, a constant part, then a policy, a row each. The one place of
// its formulas (docs/semantics.md): the runtime and the serial reference both ask here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/run.h"

namespace pipewright {

/// Where an update stands. The numbers are of minibatches.
struct LearningRatePosition {
  int64_t minibatch = 0;  ///< of the run: the first of the update, after `every`
  int64_t since = 0;      ///< since the policy began, behind the warm-up and the constant part; 0 before
  double epochs = 0;      ///< `since` in epochs, with its fraction
  double progress = 0;    ///< 0 where the policy begins, 1 from where its decay ends
};

struct LearningRateRow {
  const char* name;
  /// By what the rate is multiplied.
  double (*factor)(const LearningRatePolicy& policy, const LearningRatePosition& at);
  bool begins;   ///< takes `constant_minibatches`: it is counted from where it begins
  bool has_end;  ///< takes `decay_minibatches`
  bool
      falls_to_zero;  ///< its factor goes from 1 to 0: between base and lowest rate, instead of cut off there
};
const std::vector<LearningRateRow>& learning_rate_policies();
std::vector<std::string> learning_rate_policy_names();

/// InputError for a text other than "" or whole numbers above 0 that rise, with commas between: "3000,6000".
std::vector<int64_t> milestones_of(const std::string& text);

/// Rules that span settings: what the policy that is named does not take, a lowest rate above `base`,
/// milestones that do not rise or lie within the warm-up. InputError that begins with `where`.
void check_learning_rate(const LearningRatePolicy& policy, double base, const std::string& where);

struct LearningRateSettings {
  LearningRatePolicy policy;
  double base = 0;
  int64_t minibatches_per_epoch = 1;
  int64_t total_minibatches = 1;  ///< of the run
};

/// The rate, before any scale, for the update whose first minibatch is `minibatch`.
double learning_rate_at(const LearningRateSettings& settings, int64_t minibatch);

/// What somebody may not have meant, a line each: a warm-up, decay or milestone that the run ends before.
std::vector<std::string> learning_rate_remarks(const LearningRateSettings& settings);

/// A line for a run that goes on before minibatch `next` and had another length: which rate it had, which it
/// goes on with, and how to keep the old one; "" where no rate to come depends on the length.
std::string changed_rate_text(const LearningRateSettings& settings, int64_t earlier_total, int64_t next);

}  // namespace pipewright
