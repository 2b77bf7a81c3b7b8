#include "graph/learning_rate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "graph/json.h"
#include "graph/rows.h"

namespace pipewright {
namespace {

using Policy = LearningRatePolicy;
using At = LearningRatePosition;

double constant(const Policy&, const At&) { return 1; }
double step(const Policy& policy, const At& at) {
  if (policy.step_minibatches > 0)
    return std::pow(policy.gamma, static_cast<double>(at.since / policy.step_minibatches));
  return std::pow(policy.gamma, std::floor(at.epochs / policy.step_epochs));
}
double milestones(const Policy& policy, const At& at) {
  const std::vector<int64_t> all = milestones_of(policy.milestones);
  const auto passed = std::upper_bound(all.begin(), all.end(), at.minibatch) - all.begin();
  return std::pow(policy.gamma, static_cast<double>(passed));
}
double polynomial(const Policy& policy, const At& at) { return std::pow(1 - at.progress, policy.power); }
double exponential(const Policy& policy, const At& at) { return std::pow(policy.gamma, at.progress); }
double cosine(const Policy&, const At& at) { return 0.5 * (1 + std::cos(std::numbers::pi * at.progress)); }

const LearningRateRow& row_of(const Policy& policy) {
  return row_named(learning_rate_policies(), "learning_rate_policy", policy.name);
}

int64_t begin_of(const Policy& policy) { return policy.warmup_minibatches + policy.constant_minibatches; }

int64_t decay_of(const LearningRateSettings& settings) {
  if (settings.policy.decay_minibatches > 0) return settings.policy.decay_minibatches;
  return std::max<int64_t>(1, settings.total_minibatches - begin_of(settings.policy));
}

std::string in_text(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", rate);
  return text;
}

std::string at_end(const LearningRateSettings& settings) {
  return "the rate ends at " + in_text(learning_rate_at(settings, settings.total_minibatches - 1)) + " of " +
         in_text(settings.base);
}

}  // namespace

const std::vector<LearningRateRow>& learning_rate_policies() {
  static const std::vector<LearningRateRow> rows = {
      {.name = "constant", .factor = constant, .begins = false, .has_end = false, .falls_to_zero = false},
      {.name = "step", .factor = step, .begins = true, .has_end = false, .falls_to_zero = false},
      {.name = "milestones", .factor = milestones, .begins = false, .has_end = false, .falls_to_zero = false},
      {.name = "polynomial", .factor = polynomial, .begins = true, .has_end = true, .falls_to_zero = true},
      {.name = "exponential", .factor = exponential, .begins = true, .has_end = true, .falls_to_zero = false},
      {.name = "cosine", .factor = cosine, .begins = true, .has_end = true, .falls_to_zero = true}};
  return rows;
}

std::vector<std::string> learning_rate_policy_names() { return names_of(learning_rate_policies()); }

std::vector<int64_t> milestones_of(const std::string& text) {
  std::vector<int64_t> all;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int64_t value = 0;
    const auto [stopped, error] = std::from_chars(at, end, value);
    const bool last = stopped == end;
    if (error != std::errc() || (!last && (*stopped != ',' || stopped + 1 == end)))
      throw InputError("got '" + text + "', expected minibatches with commas between, as 3000,6000");
    if (value <= (all.empty() ? 0 : all.back())) {
      throw InputError("got '" + text + "': " + std::to_string(value) +
                       (all.empty() ? " is not above 0" : " is not above " + std::to_string(all.back())) +
                       "; expected minibatches that rise, as 3000,6000");
    }
    all.push_back(value);
    at = last ? end : stopped + 1;
  }
  return all;
}

void check_learning_rate(const LearningRatePolicy& policy, double base, const std::string& where) {
  const LearningRateRow& row = row_of(policy);
  const auto fail = [&](const char* key, const std::string& message, const std::string& remedy = "") {
    fail_document(where, std::string("learning_rate_policy.") + key, message, remedy);
  };
  const auto demand = [&](bool takes, const char* key, bool (*others)(const LearningRateRow&)) {
    if (takes) return;
    std::vector<std::string> names;
    for (const LearningRateRow& other : learning_rate_policies())
      if (others(other)) names.emplace_back(other.name);
    fail(key, std::string("the policy '") + row.name + "' does not take it",
         "Give --learning-rate-policy " + join(names, " or ") + ", or leave it out.");
  };
  std::vector<int64_t> milestones;
  try {
    milestones = milestones_of(policy.milestones);
  } catch (const InputError& error) {
    fail("milestones", error.what());
  }
  const auto is_milestones = [](const LearningRateRow& r) { return r.name == std::string("milestones"); };
  demand(milestones.empty() || is_milestones(row), "milestones", is_milestones);
  if (is_milestones(row) && milestones.empty())
    fail("milestones", "the policy 'milestones' has none", "Give --milestones, as 3000,6000.");
  if (!milestones.empty() && milestones.front() < policy.warmup_minibatches) {
    fail("milestones",
         std::to_string(milestones.front()) + " lies within the warm-up of " +
             std::to_string(policy.warmup_minibatches) + " minibatches",
         "Milestones are minibatches of the run, counted from its beginning.");
  }
  demand(policy.constant_minibatches == 0 || row.begins, "constant_minibatches",
         [](const LearningRateRow& r) { return r.begins; });
  demand(policy.decay_minibatches == 0 || row.has_end, "decay_minibatches",
         [](const LearningRateRow& r) { return r.has_end; });
  demand(policy.lowest_learning_rate == 0 || row.factor != constant, "lowest_learning_rate",
         [](const LearningRateRow& r) { return r.factor != constant; });
  if (policy.lowest_learning_rate > base) {
    fail("lowest_learning_rate",
         in_text(policy.lowest_learning_rate) + " is above the learning rate, " + in_text(base));
  }
}

double learning_rate_at(const LearningRateSettings& settings, int64_t minibatch) {
  const LearningRatePolicy& policy = settings.policy;
  const double base = settings.base;
  if (minibatch < policy.warmup_minibatches)
    return base * static_cast<double>(minibatch + 1) / static_cast<double>(policy.warmup_minibatches);
  const int64_t of_epoch = std::max<int64_t>(1, settings.minibatches_per_epoch);
  if (policy.every == "epoch") minibatch -= minibatch % of_epoch;
  const int64_t since = std::max<int64_t>(0, minibatch - begin_of(policy));
  const auto counted = static_cast<double>(since);
  const LearningRatePosition position{minibatch, since, counted / static_cast<double>(of_epoch),
                                      std::min(1.0, counted / static_cast<double>(decay_of(settings)))};
  const LearningRateRow& row = row_of(policy);
  const double factor = row.factor(policy, position), lowest = policy.lowest_learning_rate;
  if (row.falls_to_zero) return lowest + (base - lowest) * factor;
  return std::max(lowest, base * factor);
}

std::vector<std::string> learning_rate_remarks(const LearningRateSettings& settings) {
  const LearningRatePolicy& policy = settings.policy;
  const LearningRateRow& row = row_of(policy);
  const int64_t total = settings.total_minibatches;
  const std::string length = "the run of " + std::to_string(total) + " minibatches";
  if (policy.warmup_minibatches > total) {
    return {"the warm-up of " + std::to_string(policy.warmup_minibatches) + " minibatches is longer than " +
            length + ": " + at_end(settings)};
  }
  const int64_t begin = begin_of(policy);
  if (row.begins && begin > 0 && begin >= total)
    return {"the policy '" + policy.name + "' begins at minibatch " + std::to_string(begin) + ", behind " +
            length};
  if (row.has_end && begin + decay_of(settings) > std::max(total, begin + 1)) {
    return {"the decay of " + std::to_string(policy.decay_minibatches) + " minibatches from minibatch " +
            std::to_string(begin) + " on is longer than " + length + ": " + at_end(settings)};
  }
  const std::vector<int64_t> milestones = milestones_of(policy.milestones);
  if (!milestones.empty() && milestones.back() >= total)
    return {"the milestone " + std::to_string(milestones.back()) + " lies behind " + length};
  return {};
}

std::string changed_rate_text(const LearningRateSettings& settings, int64_t earlier_total, int64_t next) {
  LearningRateSettings earlier = settings;
  earlier.total_minibatches = earlier_total;
  const int64_t end = std::max(earlier_total, settings.total_minibatches);
  int64_t k = next;
  while (k < end && learning_rate_at(earlier, k) == learning_rate_at(settings, k)) ++k;
  if (k >= end) return "";
  // Where the earlier run ended its last rate says more than one that it never had.
  const int64_t had = std::max<int64_t>(0, k - 1);
  std::string text = "from minibatch " + std::to_string(k) + " on " + in_text(learning_rate_at(settings, k)) +
                     ", behind " + in_text(learning_rate_at(earlier, had)) + ": the policy '" +
                     settings.policy.name + "' ends with the run, which has " +
                     std::to_string(settings.total_minibatches) + " minibatches now and had " +
                     std::to_string(earlier_total);
  const int64_t decay = earlier_total - begin_of(settings.policy);
  if (decay > 0) text += "; --decay-minibatches " + std::to_string(decay) + " keeps the rates it had";
  return text;
}

}  // namespace pipewright
