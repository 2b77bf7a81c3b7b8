#include "optimizer/search/constraints.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "graph/error.h"
#include "graph/nearest.h"
#include "optimizer/search/search_stage.h"

namespace pipewright {
namespace {

using search_detail::kProof;
using search_detail::kTolerance;
using search_detail::StageOption;

/// What a first try is above the bound: mostly the least period is not far above it.
constexpr double kFirstTry = 0.03;

struct DemandSuffix {
  bool possible = false;
  int64_t devices = 0;
  int64_t stages = 0;
  int next = -1;
  int64_t replicas = 0;
  bool rest_replicated = false;
  bool better_than(const DemandSuffix& other) const {
    return !other.possible || std::tie(devices, stages) < std::tie(other.devices, other.stages);
  }
};

bool within_layer(const std::string& layer, const std::string& of) {
  return layer == of || layer.rfind(of + ".", 0) == 0;
}

/// The stages of a problem with their terms: worked out once where these are few, whatever the periods.
class StageOptions {
 public:
  explicit StageOptions(const Problem& q) : q_(q) {
    const auto size = static_cast<size_t>(q.states->size());
    if (size <= kMostKept) kept_.resize(size * size);
  }
  const StageOption& option(int from, int to) {
    if (kept_.empty()) return *(last_ = search_detail::option_of(q_, from, to));
    std::optional<StageOption>& kept =
        kept_[static_cast<size_t>(from) * static_cast<size_t>(q_.states->size()) + static_cast<size_t>(to)];
    if (!kept) kept = search_detail::option_of(q_, from, to);
    return *kept;
  }

 private:
  static constexpr size_t kMostKept = 128;
  const Problem& q_;
  std::vector<std::optional<StageOption>> kept_;  // by from and to
  std::optional<StageOption> last_;
};

class Search {
 public:
  Search(const Problem& q, const StagePlaces& places) : q_(q), places_(places), options_(q) {}

  std::optional<Solution> within(double period) {
    const States& states = *q_.states;
    const int last = states.last();
    const int tables = q_.replicated ? 2 : 1;
    const int64_t most_of_a_stage = std::min(q_.devices, q_.most_replicas);
    // best[place][table][state]
    std::vector<std::vector<std::vector<DemandSuffix>>> best(
        places_.count() + 1, std::vector<std::vector<DemandSuffix>>(
                                 tables, std::vector<DemandSuffix>(static_cast<size_t>(states.size()))));
    // The end is a suffix of no stages, for a plan that has all the stages named.
    for (int64_t place = 0; place <= places_.count(); ++place)
      best[place][0][last].possible = places_.ends(place);
    for (int i = last - 1; i >= 0; --i) {
      for (const int j : states.after(i)) {
        // No model is faster than its compute shared out evenly.
        const double least_replicas = least_between(states, i, j) / period * (1 - kTolerance);
        if (least_replicas > static_cast<double>(most_of_a_stage)) continue;
        const auto whole = static_cast<int64_t>(std::ceil(std::max(1.0, least_replicas)));
        const StageOption* stage = nullptr;
        for (int64_t place = 0; place < places_.count(); ++place) {
          const int64_t next = places_.next(place);
          if (!places_.begins(place, i) || !places_.begins(next, j)) continue;
          for (int wanted = 0; wanted < tables; ++wanted) {
            for (int rest = wanted; rest >= 0; --rest) {
              const DemandSuffix& after = best[next][rest][j];
              if (!after.possible || least_replicas > static_cast<double>(q_.devices - after.devices))
                continue;
              DemandSuffix& held = best[place][wanted][i];
              const int64_t least = std::max<int64_t>(whole, wanted > rest ? 2 : 1);
              if (held.possible && std::make_pair(after.devices + least, after.stages + 1) >=
                                       std::make_pair(held.devices, held.stages))
                continue;
              if (stage == nullptr) stage = &options_.option(i, j);
              const int64_t replicas = fewest(*stage, place, wanted > rest ? 2 : 1,
                                              q_.devices - after.devices, after.devices, period);
              if (replicas == 0) continue;
              DemandSuffix found;
              found.possible = true;
              found.devices = after.devices + replicas;
              found.stages = after.stages + 1;
              found.next = j;
              found.replicas = replicas;
              found.rest_replicated = rest == 1;
              if (found.better_than(held)) held = found;
            }
          }
        }
      }
    }
    int table = tables - 1;
    if (!best[0][table][0].possible) return std::nullopt;
    Solution solution;
    int64_t place = 0;
    for (int i = 0; i != last;) {
      const DemandSuffix& suffix = best[place][table][i];
      solution.stages.push_back({i, suffix.next, suffix.replicas});
      table = suffix.rest_replicated ? 1 : 0;
      i = suffix.next;
      place = places_.next(place);
    }
    search_detail::finish(q_, &solution);
    return solution;
  }

 private:
  /// Smallest number that is possible; 0 if none is.
  int64_t fewest(const StageOption& stage, int64_t place, int64_t least, int64_t most, int64_t later,
                 double period) const {
    most = std::min(most, q_.most_replicas);
    if (const int64_t replicas = places_.replicas(place); replicas > 0) {
      const bool in_range = replicas >= least && replicas <= most;
      return in_range && search_detail::within(q_, stage, replicas, later, period) ? replicas : 0;
    }
    return search_detail::fewest_replicas(q_, stage, least, most, later, period);
  }

  const Problem& q_;
  const StagePlaces& places_;
  StageOptions options_;
};

/// Work shared out evenly over all devices: no plan is faster.
double shared_out(const Problem& q) {
  const State& whole = q.states->states.back();
  return (whole.forward_seconds + whole.backward_seconds) / static_cast<double>(q.devices) * (1 - kTolerance);
}

/// The solution of least period; none has a period below `low`.
std::optional<Solution> least_period(Search* search, double low) {
  std::optional<Solution> best = search->within(std::numeric_limits<double>::infinity());
  if (!best) return best;
  double high = best->period_seconds;
  const auto tried = [&](double period) {
    const std::optional<Solution> found = search->within(period);
    if (found)
      high = std::min(period, found->period_seconds);
    else
      low = period;
    return found.has_value();
  };
  // Too short a period is refuted quickly.
  for (double step = kFirstTry; low > 0 && low * (1 + step) < high; step *= 3) {
    if (tried(low * (1 + step))) break;
  }
  while (high - low > kProof * high) {
    tried(low + (high - low) / 2);
    // Every other try is just below what has been achieved: the last one as soon as that is the best.
    if (high - low > kProof * high) tried(high * (1 - kProof));
  }
  best = search->within(high * (1 + kTolerance));
  PW_CHECK(best.has_value(), "a period that was achieved stays possible");
  return best;
}

}  // namespace

std::vector<NodeSet> pinned_nodes(const Profile& profile, const StageConstraints& constraints) {
  std::vector<NodeSet> pinned;
  std::vector<int64_t> stage_of(profile.nodes.size(), -1);
  for (const auto& [name, stage] : constraints.pins) {
    bool found = false;
    for (size_t v = 0; v < profile.nodes.size(); ++v) {
      const ProfiledNode& node = profile.nodes[v];
      if (node.name != name && !within_layer(node.layer, name)) continue;
      found = true;
      if (stage_of[v] >= 0 && stage_of[v] != stage) {
        throw InputError("--pin: node " + in_quotes(node.name) + " is pinned to stage " +
                         std::to_string(stage_of[v]) + " and, with '" + name + "', to stage " +
                         std::to_string(stage));
      }
      stage_of[v] = stage;
      if (static_cast<int64_t>(pinned.size()) <= stage)
        pinned.resize(static_cast<size_t>(stage) + 1, NodeSet(profile.nodes.size()));
      pinned[static_cast<size_t>(stage)].set(v);
    }
    if (found) continue;
    std::vector<std::string> known;
    for (const ProfiledNode& node : profile.nodes) {
      for (const std::string& word : {node.layer, node.name}) {
        if (!word.empty() && std::find(known.begin(), known.end(), word) == known.end())
          known.push_back(word);
      }
    }
    throw InputError("--pin: the profile of " + in_quotes(profile.model) + " has no layer or node " +
                         in_quotes(name) + suggestion(name, known),
                     "`pipewright-optimizer show` lists the layers of a plan.");
  }
  return pinned;
}

std::optional<Solution> search_with_constraints(const Problem& problem, const StageConstraints& constraints,
                                                const std::vector<NodeSet>& pinned) {
  PW_CHECK(!problem.all_devices && !problem.single_stage, "constraints leave the number of devices open");
  PW_CHECK(!problem.inputs.placed(), "on one level of equal devices");
  const StagePlaces places(*problem.states, constraints, pinned, problem.least_stages);
  if (!places.possible()) return std::nullopt;
  Search search(problem, places);
  return least_period(&search, shared_out(problem));
}

}  // namespace pipewright
