#include "tests/optimizer/brute_force.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "optimizer/cost/stage_memory.h"

namespace pipewright::testing {
namespace {

constexpr double kTolerance = 1e-9;

}  // namespace

std::vector<int64_t> levels_of(const std::vector<double>& stage_periods, double period) {
  std::vector<int64_t> levels;
  for (const double seconds : stage_periods)
    levels.push_back(period > 0 ? std::llround(seconds / period * (1 << 30)) : 0);
  std::sort(levels.begin(), levels.end(), std::greater<>());
  return levels;
}

BruteForce::BruteForce(const Profile& profile, const CostInputs& inputs)
    : profile_(profile), inputs_(inputs) {
  const int n = static_cast<int>(profile.nodes.size());
  all_ = (Mask{1} << n) - 1;
  std::map<std::string, int> maker;
  std::vector<Mask> parents(n, 0);
  std::vector<Mask> children(n, 0);
  for (int v = 0; v < n; ++v) {
    for (const std::string& input : profile.nodes[v].inputs) {
      if (!maker.count(input)) continue;
      parents[v] |= Mask{1} << maker[input];
      children[maker[input]] |= Mask{1} << v;
    }
    for (const ProfiledValue& output : profile.nodes[v].outputs) maker[output.name] = v;
  }
  const auto is_down_set = [&](Mask set) {
    for (int v = 0; v < n; ++v) {
      if ((set >> v & 1) && (parents[v] & ~set)) return false;
    }
    return true;
  };
  const auto separates_tie = [&](Mask set) {
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < a; ++b) {
        for (const std::string& name : profile.nodes[a].parameters) {
          const auto& others = profile.nodes[b].parameters;
          const bool shared = std::find(others.begin(), others.end(), name) != others.end();
          if (shared && (set >> a & 1) != (set >> b & 1)) return true;
        }
      }
    }
    return false;
  };

  const auto costs_nothing = [&](int v) {
    const ProfiledNode& node = profile.nodes[v];
    return node.compute_seconds() + node.launch_pass().sum() + node.gap_pass().sum() == 0 &&
           node.parameter_bytes == 0 && node.buffer_bytes == 0 && node.parameters.empty();
  };
  std::vector<char> weightless(n, 0);
  std::vector<Mask> behind(n, 0);
  for (int v = 0; v < n; ++v) {
    const ProfiledNode& node = profile.nodes[v];
    bool parents_too = true;
    int64_t kept = node.saved_bytes;
    for (int u = 0; u < v; ++u) {
      if (!(parents[v] >> u & 1)) continue;
      parents_too = parents_too && weightless[u];
      behind[v] |= Mask{1} << u | behind[u];
    }
    for (int u = 0; u < v; ++u) {
      if (behind[v] >> u & 1) kept += profile.nodes[u].saved_bytes;
    }
    if (!parents_too || !costs_nothing(v) || kept > node.outputs[0].bytes ||
        __builtin_popcount(children[v]) != 1)
      continue;
    const int reader = __builtin_ctz(children[v]);
    weightless[v] = !costs_nothing(reader) || children[reader] != 0;
  }
  for (Mask set = 0; set <= all_; ++set) {
    if (!is_down_set(set) || separates_tie(set)) continue;
    every_cut_.push_back(set);
    for (const int limited : {0, 1}) {
      bool sensible = true;
      for (int v = 0; v < n; ++v) {
        const bool in = set >> v & 1;
        if (in && weightless[v] && !(children[v] & set)) sensible = false;
        const bool sink = costs_nothing(v) && children[v] == 0 && parents[v] != 0;
        const bool kept = limited == 1 && profile.nodes[v].saved_bytes > 0;
        if (!in && sink && !kept && (parents[v] & ~set) == 0) sensible = false;
      }
      if (sensible) sensible_cuts_[limited].push_back(set);
    }
  }
  loads_.assign(all_ + 1, {});
  known_.assign(all_ + 1, {});
}

int64_t BruteForce::crossing_bytes(Mask done) const {
  int64_t bytes = 0;
  for (size_t u = 0; u < profile_.nodes.size(); ++u) {
    if (!(done >> u & 1)) continue;
    for (const ProfiledValue& output : profile_.nodes[u].outputs) {
      bool wanted = false;
      for (size_t v = 0; v < profile_.nodes.size(); ++v) {
        const auto& inputs = profile_.nodes[v].inputs;
        wanted = wanted ||
                 (!(done >> v & 1) && std::find(inputs.begin(), inputs.end(), output.name) != inputs.end());
      }
      if (wanted) bytes += output.bytes;
    }
  }
  return bytes;
}

int64_t BruteForce::kept_bytes(size_t u) const {
  return std::min(profile_.nodes[u].saved_bytes, profile_.nodes[u].outputs[0].bytes);
}

size_t BruteForce::freed_at(size_t u) const {
  for (size_t k = 0; k < profile_.nodes.size(); ++k) {
    const auto& keeps = profile_.nodes[k].keeps;
    if (std::count(keeps.begin(), keeps.end(), profile_.nodes[u].outputs[0].name) > 0) return k;
  }
  return u;
}

bool BruteForce::goes_on(size_t u, Mask done) const {
  if (!(done >> u & 1)) return false;
  for (size_t v = 0; v < profile_.nodes.size(); ++v) {
    const auto& inputs = profile_.nodes[v].inputs;
    const bool reads = std::count(inputs.begin(), inputs.end(), profile_.nodes[u].outputs[0].name) > 0;
    if (reads && !(done >> v & 1)) return true;
  }
  return false;
}

int64_t BruteForce::unsaved_bytes(size_t u, Mask done) const {
  const ProfiledNode& maker = profile_.nodes[u];
  return goes_on(u, done) ? std::max<int64_t>(0, maker.outputs[0].bytes - maker.saved_bytes) : 0;
}

StageLoad BruteForce::load(Mask from, Mask to) const {
  StageLoad load;
  std::set<std::string> seen;
  for (size_t v = 0; v < profile_.nodes.size(); ++v) {
    if (!((to & ~from) >> v & 1)) continue;
    const ProfiledNode& node = profile_.nodes[v];
    load.forward_seconds += node.forward_seconds;
    load.backward_seconds += node.backward_input_seconds + node.backward_weight_seconds;
    load.buffer_bytes += node.buffer_bytes;
    load.saved_bytes += node.saved_bytes;
    if (!node.parameters.empty() && !seen.insert(node.parameters[0]).second) continue;
    load.parameter_bytes += node.parameter_bytes;
    load.trainable_bytes += node.trainable_parameter_bytes;
  }
  load.first = from == 0;
  load.last = to == all_;
  // The last stage of a model that waits for its host is captured; that is a matter of memory here.
  double device = 0, host = 0;
  for (const ProfiledNode& node : profile_.nodes) {
    device += node.compute_seconds() + node.gap_pass().sum();
    host += node.launch_pass().sum();
  }
  load.captured = load.last && host > 0 && host >= device;
  load.in_bytes = crossing_bytes(from);
  load.out_bytes = crossing_bytes(to);
  int64_t saved_later = 0, gradients_later = 0;
  std::optional<int64_t> peak;
  for (size_t v = profile_.nodes.size(); v-- > 0;) {
    const ProfiledNode& node = profile_.nodes[v];
    if (to >> v & 1) load.held_bytes += unsaved_bytes(v, to);
    if (!((to & ~from) >> v & 1)) continue;
    int64_t transient = (goes_on(v, to) ? 0 : node.outputs[0].bytes) + node.workspace_bytes;
    for (size_t u = 0; u < v; ++u) {  // made before, and read by this node or later
      const std::string& value = profile_.nodes[u].outputs[0].name;
      const bool wanted =
          std::any_of(profile_.nodes.begin() + static_cast<std::ptrdiff_t>(v), profile_.nodes.end(),
                      [&](const ProfiledNode& reader) {
                        return std::count(reader.inputs.begin(), reader.inputs.end(), value) > 0;
                      });
      // What is sent on is in the messages.
      if (wanted && !goes_on(u, to)) transient += profile_.nodes[u].outputs[0].bytes;
    }
    load.workspace.alone_bytes = std::max(load.workspace.alone_bytes, transient - saved_later);
    const bool shared =
        std::count_if(profile_.nodes.begin(), profile_.nodes.end(), [&](const ProfiledNode& other) {
          return !node.parameters.empty() && other.parameters == node.parameters;
        }) > 1;
    if (!shared) gradients_later += node.trainable_parameter_bytes;
    if (!shared && node.trainable_parameter_bytes > 0) load.waiting_gradient_bytes += node.outputs[0].bytes;
    const int64_t now = transient - saved_later + gradients_later;
    peak = std::max(peak.value_or(now), now);
    // A value is free again with the first of the nodes that keep it; what is sent on its send still holds.
    saved_later += node.saved_bytes - kept_bytes(v);
    for (size_t u = 0; u <= v; ++u)
      if (!goes_on(u, to) && freed_at(u) == v) saved_later += kept_bytes(u);
  }
  load.workspace.with_gradients_bytes = peak.value_or(0) - gradients_later;
  // What is sent on and kept by later stages alone is not saved here, but held for the send.
  for (size_t v = 0; v < profile_.nodes.size(); ++v) {
    if (!((to & ~from) >> v & 1) || !goes_on(v, to)) continue;
    const ProfiledValue& value = profile_.nodes[v].outputs[0];
    bool kept_here = false, kept = false;
    for (size_t k = 0; k < profile_.nodes.size(); ++k) {
      const auto& keeps = profile_.nodes[k].keeps;
      if (std::count(keeps.begin(), keeps.end(), value.name) == 0) continue;
      kept = true;
      kept_here = kept_here || (to >> k & 1);
    }
    if (!kept || kept_here) continue;
    const int64_t elsewhere = std::min(value.bytes, profile_.nodes[v].saved_bytes);
    load.saved_bytes -= elsewhere;
    load.held_bytes += elsewhere;
  }
  return load;
}

void BruteForce::price(const BruteProblem& problem, const std::vector<Mask>& chain,
                       const std::vector<int64_t>& replicas, std::vector<Candidate>* found) {
  const uint32_t all = (uint32_t{1} << replicas.size()) - 1;
  const uint32_t first = problem.recompute == Recompute::kAlways ? all : 0;
  const uint32_t last = problem.recompute == Recompute::kNever ? 0 : all;
  for (uint32_t recomputing = first; recomputing <= last; ++recomputing)
    price(problem, chain, replicas, recomputing, found);
}

void BruteForce::price(const BruteProblem& problem, const std::vector<Mask>& chain,
                       const std::vector<int64_t>& replicas, uint32_t recomputing,
                       std::vector<Candidate>* found) {
  Candidate candidate;
  int64_t later = 0;
  Mask to = all_;
  for (size_t s = replicas.size(); s-- > 0;) {
    const Mask from = chain[s];
    if (known_[from].empty()) {
      known_[from].assign(all_ + 1, 0);
      loads_[from].resize(all_ + 1);
    }
    if (!known_[from][to]) {
      known_[from][to] = 1;
      loads_[from][to] = load(from, to);
    }
    StageLoad mine = loads_[from][to];
    mine.recompute = (recomputing >> s & 1) != 0;
    const double period = stage_period(mine, replicas[s], inputs_).total_seconds();
    const int64_t ceiling = (later + replicas[s] - 1) / replicas[s];
    const int64_t depth = problem.strategy == "model-parallel" ? 1 : 1 + ceiling;
    const int64_t memory = stage_memory(mine, replicas[s], depth, inputs_).total_bytes();
    candidate.solution.period_seconds = std::max(candidate.solution.period_seconds, period);
    candidate.periods.push_back(period);
    candidate.solution.bytes += mine.in_bytes;
    candidate.memory_bytes = std::max(candidate.memory_bytes, memory);
    candidate.most_replicas = std::max(candidate.most_replicas, replicas[s]);
    later += replicas[s];
    to = from;
  }
  candidate.solution.devices = later;
  candidate.solution.stages = static_cast<int64_t>(replicas.size());
  const bool straight = problem.strategy == "straight" || problem.strategy == "model-parallel";
  if (straight && candidate.most_replicas > 1) return;
  if (problem.strategy == "straight" && candidate.solution.stages < 2) return;
  if (problem.strategy == "hybrid" && (candidate.solution.stages < 2 || candidate.most_replicas < 2)) return;
  if (problem.strategy == "dp" && (candidate.solution.stages != 1 || later != problem.devices)) return;
  if ((problem.all_devices || problem.strategy == "model-parallel") && later != problem.devices) return;
  found->push_back(candidate);
}

void BruteForce::extend(const BruteProblem& problem, const std::vector<Mask>& cuts, std::vector<Mask>* chain,
                        std::vector<int64_t>* replicas, int64_t used, std::vector<Candidate>* found) {
  const Mask from = chain->back();
  const bool straight = problem.strategy == "straight" || problem.strategy == "model-parallel";
  const int64_t most = straight ? std::min<int64_t>(1, problem.devices - used) : problem.devices - used;
  for (int64_t m = 1; m <= most; ++m) {
    replicas->push_back(m);
    for (const Mask to : cuts) {
      if ((to & from) != from || to == from) continue;
      if (to == all_) {
        price(problem, *chain, *replicas, found);
      } else {
        chain->push_back(to);
        extend(problem, cuts, chain, replicas, used + m, found);
        chain->pop_back();
      }
    }
    replicas->pop_back();
  }
}

std::vector<BruteForce::Candidate> BruteForce::candidates(const BruteProblem& problem) {
  std::vector<Candidate> found;
  std::vector<Mask> chain = {0};
  std::vector<int64_t> replicas;
  // Under a memory limit the place of a weightless node moves its own few bytes, which the search leaves out.
  const bool free = problem.strategy == "best" && !problem.all_devices && problem.memory_bytes == 0;
  extend(problem, free ? every_cut_ : sensible_cuts_[problem.memory_bytes > 0 ? 1 : 0], &chain, &replicas, 0,
         &found);
  return found;
}

std::optional<BruteSolution> BruteForce::best(const BruteProblem& problem) {
  std::vector<Candidate> found = candidates(problem);
  if (problem.memory_bytes > 0) {
    const auto too_large = [&](const Candidate& c) { return c.memory_bytes > problem.memory_bytes; };
    found.erase(std::remove_if(found.begin(), found.end(), too_large), found.end());
  }
  if (found.empty()) return std::nullopt;
  double period = found[0].solution.period_seconds;
  for (const Candidate& c : found) period = std::min(period, c.solution.period_seconds);
  std::optional<BruteSolution> best;
  for (const Candidate& c : found) {
    BruteSolution a = c.solution;
    if (a.period_seconds > period * (1 + kTolerance)) continue;
    if (problem.strategy != "model-parallel") a.levels = levels_of(c.periods, period);
    if (!best || std::tie(a.devices, a.levels, a.stages, a.bytes) <
                     std::tie(best->devices, best->levels, best->stages, best->bytes))
      best = a;
  }
  best->period_seconds = period;
  return best;
}

std::optional<int64_t> BruteForce::least_memory(const BruteProblem& problem) {
  std::optional<int64_t> least;
  for (const Candidate& c : candidates(problem))
    least = std::min(least.value_or(c.memory_bytes), c.memory_bytes);
  return least;
}

}  // namespace pipewright::testing
