#include "optimizer/commands/comparison.h"

#include <algorithm>
#include <limits>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/printable.h"
#include "graph/units.h"
#include "optimizer/commands/comparison_rows.h"
#include "optimizer/commands/comparison_turns.h"
#include "optimizer/commands/report.h"
#include "optimizer/cost/tied.h"
#include "optimizer/plan/memory_check.h"

namespace pipewright {
namespace {

/// A gain below this is told together with what it costs.
constexpr double kLittle = 1.1;

std::string times_text(double ratio, const std::string& than) {
  if (ratio < kLittle) return number_text(100 * (ratio - 1)) + " % faster than " + than;
  return number_text(ratio) + " times as fast as " + than;
}

/// `ratio`: of one device's time to the plan's. Where one device is as fast, it is for want of memory that it
/// is not the plan.
std::string against_one_device(double ratio) {
  if (ratio > 1) return times_text(ratio, "one device");
  return "the fastest that fits; one device with memory enough would be as fast";
}

/// What a small gain costs: older weights than another way reads, or more samples an update. "" if it costs
/// nothing, or is none that is small.
std::string cost_of_gain(const Comparison& comparison, const Inputs& inputs) {
  const Contender& best = comparison.contenders[comparison.best];
  const Updates mine = updates_of(*best.plan);
  const Contender* fresh = nullptr;  // the fastest whose weights are never stale
  const Contender* small = nullptr;  // the fastest of smaller updates, its weights no older
  for (const Contender& each : comparison.contenders) {
    if (!each.plan || &each == &best || seconds(each) >= kLittle * seconds(best)) continue;
    const Updates other = updates_of(*each.plan);
    if (mine.staleness > 0 && other.staleness == 0 && (fresh == nullptr || seconds(each) < seconds(*fresh)))
      fresh = &each;
    const bool smaller = other.staleness <= mine.staleness && other.most_minibatches < mine.most_minibatches;
    if (smaller && (small == nullptr || seconds(each) < seconds(*small))) small = &each;
  }
  const auto longer = [&](const Contender& other) {
    return number_text(std::max(0.0, 100 * (seconds(other) / seconds(best) - 1))) + " % longer";
  };
  if (fresh != nullptr) {
    return " It trains on weights that are up to " + std::to_string(mine.staleness) +
           (mine.staleness == 1 ? " update" : " updates") + " old; " + fresh->name + " does not and takes " +
           longer(*fresh) + ".";
  }
  if (small == nullptr) return "";
  const int64_t samples = inputs.profile.minibatch_samples;
  const auto update = [&](const Updates& updates) {
    return std::to_string(updates.most_minibatches * std::max<int64_t>(1, samples));
  };
  return " Its updates are of " + update(mine) + (samples > 0 ? " samples; " : " minibatches; ") +
         small->name + " makes one of " + update(updates_of(*small->plan)) + " and takes " + longer(*small) +
         ".";
}

/// The fastest of those `which` that take, as the table shows it, less time than `than`; nothing where there
/// is none.
template <typename Which>
const Contender* faster_than(const Contender& than, const Comparison& comparison, const Which& which) {
  const Contender* fastest = nullptr;
  for (const Contender& each : comparison.contenders)
    if (each.plan && which(*each.plan) && seconds(each) < seconds(fastest ? *fastest : than)) fastest = &each;
  if (!fastest || format_seconds(seconds(*fastest)) == format_seconds(seconds(than))) return nullptr;
  return fastest;
}

/// Why one stage is advised, or one device: by the rows beside it.
std::string reason_of_one_stage(const Contender& best, const Comparison& comparison) {
  const bool alone = best.plan->world_size == 1;
  const auto is_other = [&](const Plan& plan) {
    return alone ? plan.world_size > 1 : plan.stages.size() > 1;
  };
  if (const Contender* other = faster_than(best, comparison, is_other))
    return std::string(alone ? "distributing" : "a pipeline") + " gains " +
           number_text(100 * (1 - seconds(*other) / seconds(best))) + " % at most (" + other->name +
           "), too little to count";
  if (alone) return "distributing gains nothing here, more devices only wait for each other";
  if (std::none_of(comparison.contenders.begin(), comparison.contenders.end(),
                   [&](const Contender& each) { return each.plan && is_other(*each.plan); }))
    return "there is no pipeline that is possible and fits";
  return "the exchange of gradients costs less than any pipeline's unequal stages or transfers";
}

/// Why a pipeline is advised where there is no data parallelism.
std::string reason_without_parallel(const Contender& best, const Comparison& comparison,
                                    const Inputs& inputs) {
  std::vector<int64_t> own;
  for (const TopologyDevice& device : inputs.topology.devices)
    own.push_back(tighter_limit(device.memory_bytes, inputs.topology.memory_bytes));
  bool lacks_memory = false;
  for (const Contender& each : comparison.contenders)
    lacks_memory = lacks_memory || (each.name == kDataParallelism && each.lacks_memory);
  const Contender* other = faster_than(best, comparison, [](const Plan&) { return true; });
  std::string text =
      other ? "no other is more than a percent faster (" + other->name + " is the fastest)" : "the fastest";
  if (!lacks_memory) return text + (other ? "" : " there is") + "; data parallelism is not possible";
  return text + (other ? ", of those that fit " : " that fits ") +
         memory_text(inputs.topology.memory_bytes, own) + " a device; data parallelism does not";
}

std::string advice_for(const Comparison& comparison, const Inputs& inputs) {
  const Contender& best = comparison.contenders[comparison.best];
  const Plan& plan = *best.plan;
  const Contender* parallel = nullptr;
  for (const Contender& each : comparison.contenders)
    if (each.plan && each.name == kDataParallelism) parallel = &each;
  std::string text = "Take " + best.name + " (" + shape_and_recompute_text(plan) + ")";
  const bool plainer = plan.stages.size() == 1 && plan.world_size > 1 && best.name != kDataParallelism;
  text += (plainer ? ", which is data parallelism here: " : ": ");
  if (comparison.devices == 1) {
    text += "there is one device";
  } else if (plan.stages.size() == 1) {
    text += reason_of_one_stage(best, comparison);
  } else if (parallel == nullptr) {
    text += reason_without_parallel(best, comparison, inputs);
  } else {
    const std::string& bottleneck = parallel->plan->predicted->bottleneck;
    const std::string bound = ", which is bound by " + bottleneck.substr(bottleneck.find(':') + 2);
    const double alone = comparison.one_device_seconds;
    // Many times as fast as what is slower than one device says nothing.
    if (seconds(*parallel) < alone) {
      text += times_text(seconds(*parallel) / seconds(best), "data parallelism") + bound;
    } else {
      text += against_one_device(alone / seconds(best)) + "; data parallelism" + bound +
              ", is no faster than one device";
    }
  }
  text += ". It is bound by " + plan.predicted->bottleneck + ".";
  text += cost_of_gain(comparison, inputs);
  // Of the fastest that runs on several devices, where it is one device that is advised.
  const Contender* distributed = &best;
  for (const Contender& each : comparison.contenders) {
    if (!each.plan || each.plan->world_size == 1) continue;
    if (distributed->plan->world_size == 1 || (distributed != &best && seconds(each) < seconds(*distributed)))
      distributed = &each;
  }
  if (const std::string crowd = crowd_text(*distributed->plan, inputs); !crowd.empty())
    text += " " + crowd + ".";
  if (const std::string sums = sums_text(parallel ? *parallel->plan : plan, inputs); !sums.empty())
    text += " " + sums + ".";
  for (const Turn& each : comparison.turns) text += " " + turn_text(each) + ".";
  if (plan.world_size == 1 && comparison.turns_sought &&
      std::none_of(comparison.turns.begin(), comparison.turns.end(),
                   [](const Turn& t) { return !t.below; })) {
    text += " That does not change up to 64 times the bandwidth.";
  }
  return text;
}

std::string ties_of_rows(const Profile& profile) {
  const std::string text = forbidden_cuts_text(profile);
  return text.empty() ? "" : "straight, hybrid: " + text + ", as in the rows that drain and in 2bw.";
}

}  // namespace

double one_device_seconds(const Inputs& inputs) {
  Inputs one = inputs;
  one.topology = flat_topology(1, inputs.topology.levels[0].bandwidth_bytes_per_second, 0, 0);
  one.request.strategy = "dp";
  one.request.constraints = {};
  one.request.schedule = "1f1b";
  one.request.weights.clear();
  one.request.microbatches = 0;
  one.request.recompute = "never";
  one.request.class_profiles.clear();
  return make_plan(one.profile, one.topology, one.request).predicted->minibatch_seconds;
}

namespace {

/// What fits least badly is nearest.
[[noreturn]] void fail_all(const std::vector<Contender>& contenders) {
  if (std::all_of(contenders.begin(), contenders.end(), [](const Contender& each) { return each.refused; }))
    throw InputError(contenders.front().why_not);
  const Contender* nearest = &contenders.front();
  for (const Contender& each : contenders) {
    const bool less = nearest->needed_bytes == 0 || each.needed_bytes < nearest->needed_bytes;
    if (each.needed_bytes > 0 && less) nearest = &each;
  }
  throw InfeasibleError(
      "no strategy fits; nearest is " + nearest->name + ": " + nearest->why_not,
      nearest->lacks_memory ? "Give more memory, more devices, or a profile with a smaller minibatch." : "");
}

void set_samples_ratios(const Convergence* table, const PlanRequest& request, Comparison* comparison) {
  if (table == nullptr) return;
  comparison->convergence = printable(table->model);
  for (Contender& each : comparison->contenders)
    if (each.plan)
      each.samples_ratio = table->samples_ratio(*each.plan, request.optimizer, request.delay_correction);
}

/// The fastest of those whose samples are known; nothing if there is none.
std::optional<size_t> fastest_to_same_loss(const std::vector<Contender>& contenders) {
  std::optional<size_t> fastest;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < contenders.size(); ++i) {
    if (!contenders[i].samples_ratio) continue;
    const double to_loss = seconds(contenders[i]) * *contenders[i].samples_ratio;
    if (to_loss >= kWorthwhile * least) continue;
    least = to_loss;
    fastest = i;
  }
  return fastest;
}

std::string same_loss_text(const Comparison& comparison, const PlanRequest& request) {
  if (comparison.convergence.empty()) return "";
  std::string with = request.optimizer;
  if (request.delay_correction != "none") with += " and " + request.delay_correction;
  std::vector<std::string> unknown;
  for (const Contender& each : comparison.contenders)
    if (each.plan && !each.samples_ratio) unknown.push_back(each.name);
  std::string text;
  if (const auto fastest = fastest_to_same_loss(comparison.contenders)) {
    const Contender& best = comparison.contenders[*fastest];
    text =
        " To the same loss, by what " + comparison.convergence + " took with " + with + ", " + best.name +
        " is fastest: " + number_text(comparison.one_device_seconds / seconds(best) / *best.samples_ratio) +
        " times one device.";
  }
  if (!unknown.empty())
    text += " Nobody has measured the samples that " + join(unknown, ", ") + " need with " + with + ".";
  return text;
}

}  // namespace

Comparison compare_weights(const Inputs& inputs, const std::vector<std::string>& weights,
                           const Convergence* convergence) {
  Comparison comparison;
  comparison.model = inputs.profile.model;
  comparison.devices = inputs.topology.device_count();
  comparison.one_device_seconds = one_device_seconds(inputs);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (std::find(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(i), weights[i]) !=
        weights.begin() + static_cast<std::ptrdiff_t>(i))
      throw InputError("--weights: " + weights[i] + " is there twice");
    comparison.contenders.push_back(contender_of_weights(inputs, weight_rule_named(weights[i])));
  }
  set_samples_ratios(convergence, inputs.request, &comparison);
  std::optional<size_t> best = fastest_to_same_loss(comparison.contenders);
  if (!best) best = advised(comparison.contenders);
  if (!best) fail_all(comparison.contenders);
  comparison.best = *best;
  comparison.advice =
      "Take " + comparison.contenders[*best].name + "." + same_loss_text(comparison, inputs.request);
  return comparison;
}

Comparison compare(const Inputs& inputs, int64_t samples_per_update, const Convergence* convergence) {
  Comparison comparison;
  comparison.model = inputs.profile.model;
  comparison.devices = inputs.topology.device_count();
  comparison.one_device_seconds = one_device_seconds(inputs);
  int64_t minibatches = std::min(comparison.devices, kMostInFlight);
  if (samples_per_update > 0) {
    const int64_t samples = std::max<int64_t>(1, inputs.profile.minibatch_samples);
    minibatches = std::clamp<int64_t>((samples_per_update + samples / 2) / samples, 1, kMostInFlight);
  }
  comparison.contenders = contenders_for(inputs, minibatches);
  const std::optional<size_t> best = advised(comparison.contenders);
  if (!best) fail_all(comparison.contenders);
  comparison.best = *best;
  set_samples_ratios(convergence, inputs.request, &comparison);
  if (is_plain(inputs.request) && comparison.devices > 1) {
    comparison.turns_sought = true;
    const std::string now = kind_of(*comparison.contenders[comparison.best].plan);
    comparison.turns = turns_of(inputs, minibatches, comparison.contenders, now);
  }
  comparison.advice = advice_for(comparison, inputs) + same_loss_text(comparison, inputs.request);
  if (comparison.devices > 1 && is_plain(inputs.request)) comparison.ties = ties_of_rows(inputs.profile);
  return comparison;
}

}  // namespace pipewright
