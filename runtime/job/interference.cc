#include "runtime/job/interference.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "graph/document.h"
#include "graph/units.h"
#include "optimizer/plan/optimizer.h"

namespace pipewright {
namespace {

// Of state that moves within a host, and of what starts again (docs/changing-plans.md has figures).
constexpr double kMoveSeconds = 0.3;

// Predictions are not better than that.
constexpr double kLeastGain = 0.03;

// Ranks that differ by less are equally slow.
constexpr double kEqual = 1.1;

constexpr double kLatencySeconds = 20e-6;

std::string words_of(const std::vector<double>& slowdowns) {
  std::string text;
  for (size_t rank = 0; rank < slowdowns.size(); ++rank) {
    if (slowdowns[rank] == 1) continue;
    char words[64];
    std::snprintf(words, sizeof words, "%srank %zu computes %.2g times as long", text.empty() ? "" : ", ",
                  rank, slowdowns[rank]);
    text += words;
  }
  return text.empty() ? "all ranks are quiet" : text;
}

}  // namespace

Replanned plan_again(const Profile& profile, Topology topology, const Plan& in_force,
                     std::vector<double> slowdowns) {
  Replanned again;
  again.slowdowns = slowdowns;
  const auto [least, most] = std::minmax_element(slowdowns.begin(), slowdowns.end());
  const bool equal = *most < kEqual * *least;
  if (!equal) {
    topology.devices.resize(slowdowns.size());
    for (size_t rank = 0; rank < slowdowns.size(); ++rank) {
      TopologyDevice& device = topology.devices[rank];
      if (device.host.empty()) device.host = "host";
      device.relative_speed /= slowdowns[rank];
    }
  }
  PlanRequest request;
  request.schedule = in_force.schedule;
  request.weights = in_force.weights;
  if (weight_rule_facts(in_force.weights).one_update_for_all) request.microbatches = in_force.microbatches;
  request.use_all_devices = true;  // a rank without a stage would have to be the last
  again.now_seconds = evaluate_plan(in_force, profile, topology, request).minibatch_seconds;
  again.plan = make_plan(profile, topology, request);
  again.next_seconds = again.plan.predicted->minibatch_seconds;
  return again;
}

double change_seconds(const Plan& in_force, double minibatch_seconds) {
  int64_t in_flight = 0;
  for (const Stage& stage : in_force.stages) in_flight = std::max(in_flight, stage.in_flight);
  // Draining and filling: as long as what is in flight, twice.
  return kMoveSeconds + 2 * static_cast<double>(in_flight + static_cast<int64_t>(in_force.stages.size())) *
                            minibatch_seconds;
}

Topology Interference::topology_for(int64_t ranks) const {
  if (!topology_) return flat_topology(ranks, bandwidth_bytes_per_second_, kLatencySeconds, 0);
  if (topology_->device_count() == ranks) return *topology_;
  throw PlanError("adapt: the topology has " + std::to_string(topology_->device_count()) +
                      " devices, the run " + std::to_string(ranks) + " ranks",
                  "Give a topology with a device for each rank.");
}

std::optional<PlanDecision> Interference::decide(const RunNow& now) {
  std::vector<double> slowdowns;
  for (const SpeedChange& speed : now.speeds) slowdowns.push_back(speed.slowdown);
  if (planning_.valid()) {
    if (planning_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
    found_ = planning_.get();
  }
  if (found_) {
    if (found_->slowdowns != slowdowns) {
      found_.reset();  // things have changed meanwhile
    } else {
      const bool waits = at_epochs_ && now.minibatch % std::max<int64_t>(1, now.minibatches_per_epoch) != 0;
      return waits ? std::nullopt : judge(now);
    }
  }
  const bool quiet = std::all_of(slowdowns.begin(), slowdowns.end(), [](double s) { return s == 1; });
  if (slowdowns == handled_ || (quiet && handled_.empty())) return std::nullopt;
  handled_ = slowdowns;
  planning_ =
      std::async(std::launch::async,
                 [this, topology = topology_for(static_cast<int64_t>(slowdowns.size())), plan = now.plan,
                  slowdowns] { return plan_again(profile_, topology, plan, slowdowns); });
  return std::nullopt;
}

std::optional<PlanDecision> Interference::judge(const RunNow& now) {
  const Replanned found = *std::exchange(found_, std::nullopt);
  const double each = found.now_seconds - found.next_seconds;
  const double gain = each * static_cast<double>(now.minibatches_left);
  const double cost = change_seconds(now.plan, found.now_seconds);
  const bool changes = each > kLeastGain * found.now_seconds && gain > cost;
  const std::string words = words_of(found.slowdowns);
  std::fprintf(
      stderr,
      "adapt: %s: %s a minibatch under the plan in force, %s under the best, %s: %s (saves %s of %ld "
      "minibatches, changing costs about %s)\n",
      words.c_str(), format_seconds(found.now_seconds).c_str(), format_seconds(found.next_seconds).c_str(),
      found.plan.shape_text().c_str(), changes ? "changes" : "stays",
      format_seconds(std::max(0.0, gain)).c_str(), now.minibatches_left, format_seconds(cost).c_str());
  if (!changes) return std::nullopt;
  return PlanDecision{"the plan made for it", found.plan, "interference: " + words};
}

std::unique_ptr<AdaptPolicy> interference(SpecOptions& options) {
  const std::string profile = options.string("profile", "");
  const std::string topology = options.string("topology", "");
  const std::string bandwidth = options.string("bandwidth", "4GB/s");
  options.choice("decide", "measured", {"measured"});
  const std::string when = options.choice("when", "now", {"now", "epoch"});
  options.finish();
  if (profile.empty())
    options.fail("profile", "missing",
                 "give --adapt interference:profile=PROFILE.json, of pipewright-profiler");
  std::optional<Topology> links;
  if (!topology.empty()) links = read_document<Topology>(topology);
  return std::make_unique<Interference>(read_document<Profile>(profile), std::move(links),
                                        parse_bytes_per_second(bandwidth, "--adapt interference: bandwidth"),
                                        when == "epoch");
}

}  // namespace pipewright
