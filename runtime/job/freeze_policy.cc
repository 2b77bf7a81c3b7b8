#include "runtime/job/freeze_policy.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "graph/document.h"
#include "graph/limits.h"
#include "graph/units.h"
#include "optimizer/baselines/halving.h"
#include "optimizer/cost/frozen_profile.h"
#include "runtime/job/interference.h"
#include "runtime/job/policy_links.h"

namespace pipewright {
namespace {

// "0.31 0.2 0.11", of the layers that are trained.
std::string norms_text(const std::vector<double>& norms, int64_t frozen) {
  std::string text;
  for (size_t l = static_cast<size_t>(frozen); l < norms.size(); ++l) {
    char word[32];
    std::snprintf(word, sizeof word, "%s%.3g", text.empty() ? "" : " ", norms[l]);
    text += word;
  }
  return text;
}

// Of the first `ranks` of `started`.
Topology topology_for(const FreezePlanning& planning, int64_t started, int64_t ranks) {
  if (!planning.topology)
    return flat_topology(ranks, planning.bandwidth_bytes_per_second, kUsualLatencySeconds, 0);
  if (planning.topology->device_count() == ranks) return *planning.topology;
  throw PlanError("adapt: the topology has " + std::to_string(planning.topology->device_count()) +
                      " devices, the plan may take " + std::to_string(ranks) + " of the run's " +
                      std::to_string(started) + " ranks",
                  "Give a topology with a device for each, or bandwidth=.");
}

// Are the values of all samples kept? A budget for a part of them brings little (docs/cache.md).
bool keeps_all(const FreezePlanning& planning, const DrainedNow& now, int64_t layers) {
  if (!now.cache || planning.profile.minibatch_samples == 0) return false;
  const double bytes = static_cast<double>(frozen_value_bytes(planning.profile, layers, "adapt: freeze")) *
                       static_cast<double>(now.samples) /
                       static_cast<double>(planning.profile.minibatch_samples) *
                       (now.cache->dtype == "bfloat16" ? 0.5 : 1);
  const auto budget = static_cast<double>(now.cache->memory_bytes + now.cache->disk_bytes);
  if (bytes <= budget) return true;
  std::fprintf(stderr, "adapt: values of %ld frozen layers take %s, the cache has %s: not counted on\n",
               layers, format_bytes(bytes).c_str(), format_bytes(budget).c_str());
  return false;
}

bool parse_whole(const std::string& text, int64_t least, int64_t most, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= least && number <= most;
}

}  // namespace

std::optional<PlanDecision> FreezePolicy::decide_drained(const DrainedNow& now) {
  FreezeNow seen;
  const int64_t interval = every_minibatches_ > 0 ? every_minibatches_ : now.minibatches_per_epoch;
  seen.intervals = now.minibatch / interval;
  seen.layers = static_cast<int64_t>(now.layers.size());
  seen.frozen = now.plan.frozen_layers;
  seen.norms = now.gradient_norms;
  seen.norms_before =
      std::exchange(norms_before_, now.norms_are_whole ? now.gradient_norms : std::vector<double>());
  if (reads_gradients() && !now.norms_are_whole) {
    std::fprintf(stderr,
                 "adapt: freeze by %s before minibatch %ld: %ld of %ld layers, as before: the run went on "
                 "from within the interval\n",
                 rule_name_.c_str(), now.minibatch, seen.frozen, seen.layers);
    return std::nullopt;
  }
  const int64_t frozen = rule_->frozen_after(seen);
  const std::string norms =
      reads_gradients() ? "; gradients of the layers that are trained: " + norms_text(seen.norms, seen.frozen)
                        : "";
  std::fprintf(stderr, "adapt: freeze by %s before minibatch %ld: %ld of %ld layers%s%s\n",
               rule_name_.c_str(), now.minibatch, frozen, seen.layers,
               frozen == seen.frozen ? ", as before" : "", norms.c_str());
  if (frozen == seen.frozen) return std::nullopt;
  PlanDecision decision{"", {}, "freeze, " + rule_name_, frozen};
  if (planning_) follow(now, decision);
  return decision;
}

// As published: whenever layers freeze, whatever it costs.
void FreezePolicy::follow_by_halving(const DrainedNow& now, PlanDecision& decision) const {
  const Topology topology = topology_for(*planning_, now.ranks, now.ranks);
  const bool cached = keeps_all(*planning_, now, *decision.freeze);
  const Plan plan = halving_plan(
      frozen_profile(planning_->profile, *decision.freeze, cached, "adapt: freeze"), topology, PlanRequest());
  const bool changes = plan.shape_text() != now.plan.shape_text() || plan.schedule != now.plan.schedule;
  std::fprintf(stderr, "adapt: with %ld layers frozen, by halving: %s on %ld ranks: %s\n", *decision.freeze,
               plan.shape_text().c_str(), plan.world_size, changes ? "changes" : "stays");
  if (!changes) return;
  decision.file = "the plan made for it";
  decision.plan = plan;
}

// The plan for what is left to train takes over if that pays.
void FreezePolicy::follow(const DrainedNow& now, PlanDecision& decision) const {
  if (planning_->halves) return follow_by_halving(now, decision);
  const int64_t ranks = planning_->grows ? now.ranks : now.plan.world_size;
  const Topology topology = topology_for(*planning_, now.ranks, ranks);
  const bool cached = keeps_all(*planning_, now, *decision.freeze);
  const FrozenPlan found =
      plan_frozen(planning_->profile, topology, now.plan, *decision.freeze, cached, planning_->global_batch);
  const double gain = (found.now_seconds - found.next_seconds) * static_cast<double>(now.minibatches_left);
  const double cost = change_seconds(now.plan, found.move_seconds, found.now_seconds);
  const bool changes = found.changes && gain > cost;
  std::fprintf(
      stderr,
      "adapt: with %ld layers frozen%s a minibatch takes %s under the plan in force, %s under the best, "
      "%s on %ld ranks: %s (saves %s of %ld minibatches, changing costs about %s)\n",
      *decision.freeze, cached ? " and cached" : "", format_seconds(found.now_seconds).c_str(),
      format_seconds(found.next_seconds).c_str(), found.plan.shape_text().c_str(), found.plan.world_size,
      changes ? "changes" : "stays", format_seconds(std::max(0.0, gain)).c_str(), now.minibatches_left,
      format_seconds(cost).c_str());
  if (!changes) return;
  decision.file = "the plan made for it";
  decision.plan = found.plan;
  if (planning_->scales_learning_rate && found.update_growth != 1) {
    decision.learning_rate_scale = now.learning_rate_scale * found.update_growth;
  }
}

PlannedChanges ManualFreeze::known() {
  PlannedChanges changes;
  for (const auto& [minibatch, layers] : layers_)
    changes.push_back({minibatch, "", {}, "freeze, manual", layers});
  return changes;
}

std::vector<std::pair<int64_t, int64_t>> parse_freeze_points(const std::string& text,
                                                             const SpecOptions& options) {
  std::vector<std::pair<int64_t, int64_t>> points;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::string point = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t at = point.find('@');
    int64_t layers = 0, minibatch = 0;
    if (at == std::string::npos || !parse_whole(point.substr(0, at), 0, kMostFrozenLayers, layers) ||
        !parse_whole(point.substr(at + 1), 1, kMostCount, minibatch)) {
      options.fail("at", "got '" + point + "', expected LAYERS@MINIBATCH, such as 3@400",
                   "several are joined by +: at=3@400+6@800");
    }
    if (!points.empty() && (minibatch <= points.back().first || layers < points.back().second)) {
      options.fail("at",
                   "got '" + point + "' behind " + std::to_string(points.back().second) + "@" +
                       std::to_string(points.back().first) +
                       ", expected a later minibatch and no fewer layers",
                   "A layer that is frozen stays so.");
    }
    points.emplace_back(minibatch, layers);
  }
  return points;
}

// profile=FILE and what goes with it.
std::optional<FreezePlanning> planning_of(SpecOptions& options) {
  const std::string profile = options.string("profile", "");
  PolicyLinks links = policy_links(options, "--adapt freeze");
  const bool pipe = options.choice("pipe", profile.empty() ? "no" : "yes", {"yes", "no"}) == "yes";
  FreezePlanning planning;
  planning.grows = options.choice("dp", "yes", {"yes", "no"}) == "yes";
  planning.global_batch = options.choice("global-batch", "keep", {"keep", "grow"}) == "grow"
                              ? GlobalBatch::kGrow
                              : GlobalBatch::kKeep;
  planning.halves = options.choice("compat", "none", {"none", "halving"}) == "halving";
  planning.scales_learning_rate = options.choice("scale-rate", "no", {"yes", "no"}) == "yes";
  if (!pipe) return std::nullopt;
  if (profile.empty()) {
    options.fail("profile", "missing, with pipe=yes",
                 "give a profile of pipewright-profiler: the plan that follows is made from it");
  }
  planning.profile = read_document<Profile>(profile);
  planning.topology = std::move(links.topology);
  planning.bandwidth_bytes_per_second = links.bandwidth_bytes_per_second;
  return planning;
}

std::unique_ptr<AdaptPolicy> freezing(SpecOptions& options) {
  std::vector<std::string> names = {"manual"};
  for (const FreezeRuleRow& row : freeze_rules()) names.emplace_back(row.name);
  const std::string rule = options.choice("rule", "alpha", names);
  const auto row = std::find_if(freeze_rules().begin(), freeze_rules().end(),
                                [&](const FreezeRuleRow& each) { return rule == each.name; });
  if (row == freeze_rules().end()) {
    const std::string at = options.string("at", "");
    if (options.has("profile")) {
      options.fail(
          "profile", "does not go with rule=manual, under which the plan stays",
          "Name the plans in a change file (--adapt manual:file=CHANGES.json), or freeze by another rule.");
    }
    options.finish();
    if (at.empty())
      options.fail("at", "missing", "give for instance --adapt freeze:rule=manual,at=3@400+6@800");
    return std::make_unique<ManualFreeze>(parse_freeze_points(at, options));
  }
  auto made = row->make(options);
  const std::string every = options.string("every", "epoch");
  int64_t minibatches = 0;
  if (every != "epoch" && !parse_whole(every, 1, kMostCount, minibatches))
    options.fail("every", "got '" + every + "', expected epoch or a number of minibatches");
  auto planning = planning_of(options);
  options.finish();
  return std::make_unique<FreezePolicy>(rule, std::move(made), minibatches, std::move(planning));
}

}  // namespace pipewright
