#include "optimizer/demands.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "graph/error.h"
#include "graph/nearest.h"
#include "optimizer/search_levels.h"
#include "optimizer/search_stage.h"

namespace pipewright {
namespace {

using search_detail::kTolerance;

struct Suffix {
  bool possible = false;
  int64_t devices = 0;
  int64_t stages = 0;
  int next = -1;
  int64_t replicas = 0;
  bool rest_replicated = false;
  bool better_than(const Suffix& other) const {
    return !other.possible || std::tie(devices, stages) < std::tie(other.devices, other.stages);
  }
};

bool within_layer(const std::string& layer, const std::string& of) {
  return layer == of || layer.rfind(of + ".", 0) == 0;
}

class Search {
 public:
  Search(const Question& q, const StagePlaces& places) : q_(q), places_(places) {}

  std::optional<Answer> within(double period) const {
    const States& states = *q_.states;
    const int last = states.last();
    const int tables = q_.replicated ? 2 : 1;
    const int64_t most_of_a_stage = std::min(q_.devices, q_.most_replicas);
    // best[place][table][state]
    std::vector<std::vector<std::vector<Suffix>>> best(
        places_.count() + 1,
        std::vector<std::vector<Suffix>>(tables, std::vector<Suffix>(static_cast<size_t>(states.size()))));
    // The end is a suffix of no stages, for a plan that has all the stages named.
    for (int64_t place = 0; place <= places_.count(); ++place)
      best[place][0][last].possible = places_.ends(place);
    for (int i = last - 1; i >= 0; --i) {
      for (const int j : states.after(i)) {
        // No model is faster than its compute shared out evenly.
        const double least_replicas = least_between(states, i, j) / period * (1 - kTolerance);
        if (least_replicas > static_cast<double>(most_of_a_stage)) continue;
        StageLoad load;
        bool made = false;
        for (int64_t place = 0; place < places_.count(); ++place) {
          const int64_t next = places_.next(place);
          if (!places_.begins(place, i) || !places_.begins(next, j)) continue;
          for (int wanted = 0; wanted < tables; ++wanted) {
            for (int rest = wanted; rest >= 0; --rest) {
              const Suffix& after = best[next][rest][j];
              if (!after.possible || least_replicas > static_cast<double>(q_.devices - after.devices))
                continue;
              if (!made) {
                load = search_detail::load_of(q_, i, j);
                made = true;
              }
              const int64_t replicas = fewest(load, place, wanted > rest ? 2 : 1, q_.devices - after.devices,
                                              after.devices, period);
              if (replicas == 0) continue;
              Suffix found;
              found.possible = true;
              found.devices = after.devices + replicas;
              found.stages = after.stages + 1;
              found.next = j;
              found.replicas = replicas;
              found.rest_replicated = rest == 1;
              Suffix& held = best[place][wanted][i];
              if (found.better_than(held)) held = found;
            }
          }
        }
      }
    }
    int table = tables - 1;
    if (!best[0][table][0].possible) return std::nullopt;
    Answer answer;
    int64_t place = 0;
    for (int i = 0; i != last;) {
      const Suffix& suffix = best[place][table][i];
      answer.stages.push_back({i, suffix.next, suffix.replicas});
      table = suffix.rest_replicated ? 1 : 0;
      i = suffix.next;
      place = places_.next(place);
    }
    search_detail::finish(q_, &answer);
    return answer;
  }

 private:
  bool possible(const StageLoad& load, int64_t replicas, int64_t later, double period) const {
    const double mine = search_detail::fitted_period(q_, load, replicas, later);
    return mine < search_detail::kNoLimit && mine <= period;
  }

  /// Smallest number that is possible; 0 if none is.
  int64_t fewest(const StageLoad& load, int64_t place, int64_t least, int64_t most, int64_t later,
                 double period) const {
    if (const int64_t replicas = places_.replicas(place); replicas > 0) {
      const bool in_range = replicas >= least && replicas <= most && replicas <= q_.most_replicas;
      return in_range && possible(load, replicas, later, period) ? replicas : 0;
    }
    most = std::min(most, q_.most_replicas);
    if (most < least) return 0;
    if (least == 1) {
      if (possible(load, 1, later, period)) return 1;
      least = 2;
    }
    if (most < least || !possible(load, most, later, period)) return 0;
    while (least < most) {  // from 2 on more replicas are never worse
      const int64_t middle = least + (most - least) / 2;
      if (possible(load, middle, later, period)) {
        most = middle;
      } else {
        least = middle + 1;
      }
    }
    return most;
  }

  const Question& q_;
  const StagePlaces& places_;
};

}  // namespace

std::vector<NodeSet> pinned_nodes(const Profile& profile, const StageDemands& demands) {
  std::vector<NodeSet> pinned;
  std::vector<int64_t> stage_of(profile.nodes.size(), -1);
  for (const auto& [name, stage] : demands.pins) {
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

std::optional<Answer> search_with_demands(const Question& question, const StageDemands& demands,
                                          const std::vector<NodeSet>& pinned, double proof) {
  PW_CHECK(!question.all_devices && !question.single_stage, "demands leave the number of devices open");
  const StagePlaces places(*question.states, demands, pinned, question.least_stages);
  if (!places.possible()) return std::nullopt;
  if (question.inputs.placed()) return search_detail::search_placed(question, places, proof);
  const Search search(question, places);
  std::optional<Answer> best = search.within(std::numeric_limits<double>::infinity());
  if (!best) return best;
  double high = best->period_seconds;
  const State& whole = question.states->states.back();
  double low = (whole.forward_seconds + whole.backward_seconds) / static_cast<double>(question.devices) *
               (1 - kTolerance);
  while (high - low > proof * high) {
    // Every other try is just below what has been achieved: the last one as soon as that is the best.
    for (const double period : {low + (high - low) / 2, high * (1 - proof)}) {
      if (!(high - low > proof * high)) break;
      const std::optional<Answer> found = search.within(period);
      if (found) {
        high = std::min(period, found->period_seconds);
      } else {
        low = period;
      }
    }
  }
  best = search.within(high * (1 + kTolerance));
  PW_CHECK(best.has_value(), "a period that was achieved stays possible");
  return best;
}

}  // namespace pipewright
