#include "runtime/job/interference.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/plan/updates.h"
#include "runtime/job/policy_links.h"

namespace pipewright {
namespace {

// Ranks agree where to drain, and start again (docs/changing-plans.md has figures).
constexpr double kAgreeSeconds = 0.3;

// Minibatches between what shows a change of speed and a decision on it.
constexpr int64_t kJustFound = 64;

// Predictions are not better than that.
constexpr double kLeastGain = 0.03;

// " (1.4 to 2.6 by part of the model)", of a rank on which some work is slower than other.
std::string range_of(const Slowdowns& slowdowns, size_t rank) {
  const auto of_nodes = slowdowns.nodes.find(static_cast<int64_t>(rank));
  if (of_nodes == slowdowns.nodes.end()) return "";
  const auto [least, most] = std::minmax_element(of_nodes->second.begin(), of_nodes->second.end());
  char words[64];
  std::snprintf(words, sizeof words, " (%.2g to %.2g by part of the model)", *least, *most);
  return words;
}

std::string words_of(const Slowdowns& slowdowns, const SlowLinks& links) {
  std::string text;
  const auto add = [&](const std::string& who, const char* does, double slowdown) {
    char words[32];
    std::snprintf(words, sizeof words, " %s %.2g", does, slowdown);
    text += (text.empty() ? "" : ", ") + who + words + " times as long";
  };
  for (size_t rank = 0; rank < slowdowns.ranks.size(); ++rank) {
    if (slowdowns.ranks[rank] == 1) continue;
    add("rank " + std::to_string(rank), "computes", slowdowns.ranks[rank]);
    text += range_of(slowdowns, rank);
  }
  for (const SlowLink& link : links)
    add("the link from rank " + std::to_string(link.from) + " to rank " + std::to_string(link.to), "takes",
        link.slowdown);
  return text.empty() ? "all ranks are quiet" : text;
}

}  // namespace

const std::vector<ReplannerRow>& replanners() {
  static const std::vector<ReplannerRow> rows = {
      {"measured", plan_again}, {"naive", plan_as_if_nodes_were_slow}, {"predict", plan_again, true}};
  return rows;
}

double change_seconds(const Plan& in_force, double move_seconds, double minibatch_seconds) {
  int64_t in_flight = 0;
  for (const Stage& stage : in_force.stages) in_flight = std::max(in_flight, stage.in_flight);
  // Draining and filling: as long as what is in flight, twice.
  const auto fill = static_cast<double>(in_flight + static_cast<int64_t>(in_force.stages.size()));
  return kAgreeSeconds + move_seconds + 2 * fill * minibatch_seconds;
}

double Interference::work_seconds(const Plan& plan, int64_t rank) const {
  std::map<std::string, const ProfiledNode*> nodes;
  int64_t trainable = 0;
  for (const ProfiledNode& node : profile_.nodes) {
    nodes[node.name] = &node;
    trainable += node.trainable_parameter_bytes;
  }
  const double step_each = trainable > 0 ? profile_.whole.step_seconds / static_cast<double>(trainable) : 0;
  double seconds = 0;
  int64_t stages = 0;
  for (const Stage& stage : plan.stages) {
    const auto place = std::find(stage.ranks.begin(), stage.ranks.end(), rank);
    if (place == stage.ranks.end()) continue;
    ++stages;
    const auto replica = static_cast<size_t>(place - stage.ranks.begin());
    double passes = 0, bytes = 0;
    for (const std::string& name : stage.nodes) {
      const auto found = nodes.find(name);
      if (found == nodes.end()) return 0;  // the profile is of another model
      const ProfiledNode& node = *found->second;
      passes += (stage.recompute ? 2 : 1) * node.forward_seconds + node.backward_input_seconds +
                node.backward_weight_seconds;
      bytes += static_cast<double>(node.trainable_parameter_bytes);
    }
    double minibatches = stage.shares.empty() ? 1 : static_cast<double>(stage.shares[replica]);  // an update
    if (weight_rule_facts(plan.weights).one_update_for_all)
      minibatches =
          std::max(1.0, static_cast<double>(plan.microbatches) / static_cast<double>(stage.ranks.size()));
    if (stage.splits()) {
      const auto all = std::accumulate(stage.split.begin(), stage.split.end(), int64_t{0});
      passes *= static_cast<double>(stage.split[replica]) / static_cast<double>(all);
    }
    seconds += passes + step_each * bytes / minibatches;
  }
  // A turn of a rank with several stages ends with the backward of each.
  return stages == 0 ? 0 : seconds / static_cast<double>(stages);
}

Topology Interference::topology_for(int64_t ranks) const {
  if (!topology_) return flat_topology(ranks, bandwidth_bytes_per_second_, kUsualLatencySeconds, 0);
  if (topology_->device_count() == ranks) return *topology_;
  throw PlanError("adapt: the topology has " + std::to_string(topology_->device_count()) +
                      " devices, the run " + std::to_string(ranks) + " ranks",
                  "Give a topology with a device for each rank.");
}

bool Interference::Event::is_quiet() const {
  return links.empty() && slowdowns.nodes.empty() &&
         std::all_of(slowdowns.ranks.begin(), slowdowns.ranks.end(), [](double s) { return s == 1; });
}

// A link that has become slow is priced by the messages of the plan under which it did.
SlowLinks Interference::priced(const RunNow& now) {
  const auto same = [](const LinkChange& a, const LinkChange& b) {
    return a.sender == b.sender && a.receiver == b.receiver && a.change.found == b.change.found;
  };
  std::vector<std::pair<LinkChange, SlowLink>> told;
  for (const LinkChange& change : now.slow_links) {
    const auto known = std::find_if(told_.begin(), told_.end(),
                                    [&](const auto& entry) { return same(entry.first, change); });
    if (known != told_.end()) {
      told.push_back(*known);
      continue;
    }
    SlowLink link{change.sender, change.receiver, change.change.slowdown, 0};
    try {
      const int64_t bytes = message_bytes(now.plan, profile_, change.sender, change.receiver);
      if (bytes > 0) link.seconds_per_byte = change.change.after_seconds / static_cast<double>(bytes);
    } catch (const PlanError&) {
      // The profile is not of this model: planning says so, once.
    }
    told.emplace_back(change, link);
  }
  told_ = std::move(told);
  SlowLinks links;
  for (const auto& [change, link] : told_) links.push_back(link);
  return links;
}

Interference::Event Interference::event_of(const RunNow& now) {
  Event event;
  if (predicted_) {
    event.slowdowns = predicted_->slowdowns(now);
  } else {
    for (const SpeedChange& speed : now.speeds) event.slowdowns.ranks.push_back(speed.slowdown);
  }
  event.links = priced(now);
  return event;
}

std::optional<PlanDecision> Interference::decide(const RunNow& now) {
  const Event event = event_of(now);
  if (planning_.valid()) {
    if (planning_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
    found_ = planning_.get();
  }
  if (found_) {
    if (Event{found_->slowdowns, found_->links} != event) {
      found_.reset();  // things have changed meanwhile
    } else {
      const bool too_early =
          at_epochs_ && now.minibatch % std::max<int64_t>(1, now.minibatches_per_epoch) != 0;
      return too_early ? std::nullopt : judge(now);
    }
  }
  if (event == handled_ || (event.is_quiet() && !handled_)) return std::nullopt;
  handled_ = event;
  began_ = now.minibatch;
  for (const SpeedChange& speed : now.speeds)  // what has just been found began before
    if (speed.found > 0 && speed.found > now.minibatch - kJustFound)
      began_ = std::min(began_, speed.minibatch);
  for (const LinkChange& link : now.slow_links)
    if (link.change.found > now.minibatch - kJustFound) began_ = std::min(began_, link.change.minibatch);
  has_told_waiting_ = false;
  planning_ = std::async(
      std::launch::async, [this, topology = topology_for(static_cast<int64_t>(event.slowdowns.ranks.size())),
                           plan = now.plan, first = now.first_plan, event] {
        return replanner_.plan(profile_, topology, plan, event.slowdowns, event.links, {first},
                               kReplanSeconds, keeps_updates_ ? updates_of(first).most_minibatches : 0);
      });
  return std::nullopt;
}

// Says so once.
bool Interference::waits(const RunNow& now, double each_seconds, double cost_seconds) {
  const double lost = each_seconds * static_cast<double>(now.minibatch - began_);
  if (lost >= kPatience * cost_seconds) return false;
  if (!std::exchange(has_told_waiting_, true))
    std::fprintf(
        stderr,
        "adapt: %s: a plan would save %s a minibatch: waits for whether it lasts until it has cost %s\n",
        words_of(found_->slowdowns, found_->links).c_str(), format_seconds(each_seconds).c_str(),
        format_seconds(kPatience * cost_seconds).c_str());
  return true;
}

std::optional<PlanDecision> Interference::judge(const RunNow& now) {
  const double each = found_->now_seconds - found_->next_seconds;
  const double gain = each * static_cast<double>(now.minibatches_left);
  const double cost = change_seconds(now.plan, found_->move_seconds, found_->now_seconds);
  if (each > kLeastGain * found_->now_seconds && gain > cost && waits(now, each, cost)) return std::nullopt;
  const Replanned found = *std::exchange(found_, std::nullopt);
  const auto clock = std::chrono::steady_clock::now();
  while (!changes_.empty() && clock - changes_.front() > std::chrono::hours(1)) changes_.pop_front();
  const bool pays = each > kLeastGain * found.now_seconds && gain > cost;
  const bool changes = pays && static_cast<int64_t>(changes_.size()) < most_an_hour_;
  const std::string words = words_of(found.slowdowns, found.links);
  std::fprintf(
      stderr,
      "adapt: %s: %s a minibatch under the plan in force, %s under the best, %s: %s (saves %s of %ld "
      "minibatches, changing costs about %s)\n",
      words.c_str(), format_seconds(found.now_seconds).c_str(), format_seconds(found.next_seconds).c_str(),
      found.plan.shape_text().c_str(),
      changes ? "changes"
      : pays  ? ("stays, after " + std::to_string(changes_.size()) + " changes in an hour").c_str()
              : "stays",
      format_seconds(std::max(0.0, gain)).c_str(), now.minibatches_left, format_seconds(cost).c_str());
  if (!changes) return std::nullopt;
  changes_.push_back(clock);
  return PlanDecision{"the plan made for it", found.plan,
                      "interference, " + std::string(replanner_.name) + ": " + words};
}

std::unique_ptr<AdaptPolicy> interference(SpecOptions& options) {
  const std::string profile = options.string("profile", "");
  PolicyLinks links = policy_links(options, "--adapt interference");
  std::vector<std::string> ways;
  for (const ReplannerRow& row : replanners()) ways.emplace_back(row.name);
  const std::string decide = options.choice("decide", ways.front(), ways);
  const std::string when = options.choice("when", "now", {"now", "epoch"});
  const std::string predictor = options.string("model", "");
  const int64_t most = options.integer("most-an-hour", Interference::kMostAnHour, 0, 1'000'000);
  const std::string updates = options.choice("updates", "keep", {"keep", "free"});
  options.finish();
  if (profile.empty())
    options.fail("profile", "missing",
                 "give --adapt interference:profile=PROFILE.json, of pipewright-profiler");
  const auto replanner = std::find_if(replanners().begin(), replanners().end(),
                                      [&](const ReplannerRow& row) { return row.name == decide; });
  std::optional<Predictor> forest;
  if (replanner->predicts && predictor.empty())
    options.fail("model", "missing", "give model=PREDICTOR.json, of pipewright-profiler train-predictor");
  if (!replanner->predicts && !predictor.empty())
    options.fail("model", "nobody reads it", "It goes with decide=predict.");
  if (!predictor.empty()) forest = read_document<Predictor>(predictor);
  return std::make_unique<Interference>(read_document<Profile>(profile), std::move(links.topology),
                                        links.bandwidth_bytes_per_second, when == "epoch", most, *replanner,
                                        std::move(forest), updates == "keep");
}

}  // namespace pipewright
