#include "optimizer/baselines/pipedream.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "graph/error.h"
#include "optimizer/cuts/states.h"

namespace pipewright {
namespace {

constexpr double kImpossible = 1e300;
constexpr double kSame = 1e-9;
constexpr size_t kMostCuts = 4096;
/// Of numbers: by replicas, end and begin of a stage.
constexpr double kMostEntries = 1 << 26;

/// Nodes that do not exist for it.
NodeSet dropped_nodes(const Dataflow& flow) {
  NodeSet dropped(flow.size());
  for (int v = 0; v < flow.size(); ++v) {
    if (flow.successors[v].empty() && flow.profile.nodes[v].layer.rfind("__getitem__", 0) == 0)
      dropped.set(v);
  }
  return dropped;
}

/// The cuts of its walk; a dropped node comes along once all is there that it reads.
std::vector<NodeSet> walked_cuts(const Dataflow& flow) {
  const NodeSet dropped = dropped_nodes(flow);
  std::set<NodeSet> known;
  std::vector<NodeSet> found;
  const auto add = [&](NodeSet cut) {
    for (size_t v = dropped.find_first(); v != NodeSet::npos; v = dropped.find_next(v))
      if (flow.ancestors[v].any() && flow.ancestors[v].is_subset_of(cut)) cut.set(v);
    if (!known.insert(cut).second) return;
    if (known.size() > kMostCuts) {
      throw InputError("--objective pipedream: profile of '" + flow.profile.model + "' has more than " +
                           std::to_string(kMostCuts) + " cuts, and its table an entry for each pair of them",
                       "Use --objective pipewright, which searches among some of them.");
    }
    found.push_back(std::move(cut));
  };
  NodeSet first(flow.size());
  first.set(0);
  add(first);
  for (size_t at = 0; at < found.size(); ++at) {
    const NodeSet here = found[at];
    for (size_t u = here.find_first(); u != NodeSet::npos; u = here.find_next(u)) {
      for (const int reader : flow.successors[u]) {
        if (here.test(reader) || dropped.test(reader)) continue;
        NodeSet larger = here | flow.ancestors[reader];
        larger.set(reader);
        add(std::move(larger));
      }
    }
  }
  return found;
}

/// Servers of devices with a link each; devices that have no servers are those of one.
struct Servers {
  int64_t devices = 1, count = 1;
  double inside = 1, above = 1;  ///< bytes per second
};

Servers servers_of(const Topology& topology) {
  std::vector<TopologyLevel> levels;
  for (const TopologyLevel& level : topology.levels)
    if (level.count > 1) levels.push_back(level);  // nothing passes the others
  if (levels.empty()) levels.push_back(topology.levels.at(0));
  const bool shared =
      std::any_of(levels.begin(), levels.end(), [](const TopologyLevel& level) { return level.shared; });
  const bool alike =
      std::all_of(topology.devices.begin(), topology.devices.end(), [](const TopologyDevice& device) {
        return device.relative_speed == 1 && device.device_class.empty() && device.memory_bytes == 0;
      });
  if (levels.size() > 2 || shared || !alike) {
    throw InputError("--objective pipedream: for one or two levels of separate links and equal devices",
                     "Use --objective pipewright, which takes all of them.");
  }
  const double inside = levels[0].bandwidth_bytes_per_second;
  if (levels.size() == 1) return {levels[0].count, 1, inside, inside};
  return {levels[0].count, levels[1].count, inside, levels[1].bandwidth_bytes_per_second};
}

double stage_seconds(double seconds, double bytes, int64_t replicas, double bandwidth) {
  const auto m = static_cast<double>(replicas);
  return (seconds + 4 * ((m - 1) / m) * bytes / bandwidth) / m;
}

double cuts_seconds(double in_bytes, double out_bytes, int64_t replicas, double bandwidth) {
  return 2 * std::max(in_bytes, out_bytes) / (bandwidth * static_cast<double>(replicas));
}

/// The original's recursion, with what cannot be part of a plan better than one that is known left out.
class Recursion {
 public:
  Recursion(const Dataflow& flow, const States& states, const Servers& servers)
      : states_(states), size_(states.size()), servers_(servers) {
    for (const State& state : states.states) {
      work_.push_back(state.least_seconds);
      bytes_.push_back(static_cast<double>(state.parameter_bytes));
      cut_.push_back(static_cast<double>(pipedream_cut_bytes(flow, state.done)));
    }
    largest_before_ = smallest_after_ = work_;
    for (int i = 1; i < size_; ++i) largest_before_[i] = std::max(largest_before_[i], largest_before_[i - 1]);
    for (int i = size_ - 1; i-- > 0;)
      smallest_after_[i] = std::min(smallest_after_[i], smallest_after_[i + 1]);

    const auto table = static_cast<size_t>(size_) * size_;
    later_.assign(servers.devices + 1, std::vector<double>(table, kImpossible));
    server_.assign(table, kImpossible);
    for (int k = 0; k < size_; ++k) {
      for (const int j : states.after(k)) {
        for (int64_t m = 1; m <= servers.devices; ++m)
          later_[m][at(j, k)] =
              std::max(inside_seconds(k, j, m), cuts_seconds(cut_[k], cut_[j], m, servers.inside));
      }
    }
  }

  PipeDreamPlan plan() {
    fill_servers(0);
    if (servers_.count == 1) take_fewest_devices();
    // The whole model on all servers alike is a plan: what takes longer is in none that is better.
    achieved_ = first_run_seconds(size_ - 1, servers_.count) * (1 + 1e-12);
    for (int i = 1; i < size_; ++i) {
      if (may_begin_run(i)) fill_servers(i);
    }
    const auto all = static_cast<size_t>(servers_.count);
    std::vector<std::vector<double>> best(all + 1, std::vector<double>(size_, kImpossible));
    std::vector<std::vector<Run>> last(all + 1, std::vector<Run>(size_));
    for (int k = 0; k < size_; ++k) {
      for (const int j : states_.after(k)) {
        if (server_[at(j, k)] >= kImpossible) continue;
        for (size_t m = 1; m <= all; ++m) {
          const auto servers = static_cast<int64_t>(m);
          if (k == 0) {
            const double alone = first_run_seconds(j, servers);
            if (alone < best[m][j]) best[m][j] = alone, last[m][j] = {0, servers};
            continue;
          }
          const double mine = later_run_seconds(k, j, servers);
          for (size_t n = m + 1; n <= all; ++n) {
            const double both = std::max(best[n - m][k], mine);
            if (both < best[n][j]) best[n][j] = both, last[n][j] = {k, servers};
          }
        }
      }
    }
    PipeDreamPlan plan;
    plan.seconds = best[all].back();
    plan.devices = servers_.count * servers_.devices;
    plan.cuts = size_;
    int64_t servers = servers_.count;
    for (int j = size_ - 1; j > 0;) {
      const Run run = last[static_cast<size_t>(servers)][j];
      servers -= run.servers;
      add_run(run, j, servers, &plan);
      j = run.begin;
    }
    std::reverse(plan.stages.begin(), plan.stages.end());
    return plan;
  }

 private:
  /// Stages from a cut on, on so many servers.
  struct Run {
    int begin = 0;
    int64_t servers = 0;
  };

  size_t at(int end, int begin) const { return static_cast<size_t>(end) * size_ + begin; }

  double inside_seconds(int i, int j, int64_t replicas) const {
    return stage_seconds(work_[j] - work_[i], bytes_[j] - bytes_[i], replicas, servers_.inside);
  }
  double first_run_seconds(int j, int64_t servers) const {
    return stage_seconds(server_[at(j, 0)], bytes_[j] - bytes_[0], servers,
                         servers_.above * static_cast<double>(servers_.devices));
  }
  double later_run_seconds(int k, int j, int64_t servers) const {
    return std::max(stage_seconds(server_[at(j, k)], bytes_[j] - bytes_[k], servers, servers_.above),
                    cuts_seconds(cut_[k], cut_[j], servers, servers_.above));
  }

  /// As if there were no more.
  void take_fewest_devices() {
    double least = kImpossible;
    for (int64_t m = 1; m <= servers_.devices; ++m) least = std::min(least, by_devices_[m].back());
    int64_t fewest = 1;
    while (by_devices_[fewest].back() > least * (1 + kSame)) ++fewest;
    servers_.devices = fewest;
    fill_servers(0);
  }

  /// Whether some number of servers could do what comes before the cut, and the others the rest, in the time
  /// achieved.
  bool may_begin_run(int i) const {
    for (int64_t before = 1; before < servers_.count; ++before) {
      if (work_[i] <= achieved_ * static_cast<double>(before * servers_.devices) &&
          work_.back() - work_[i] <=
              achieved_ * static_cast<double>((servers_.count - before) * servers_.devices))
        return true;
    }
    return false;
  }

  /// Best pipelines of a server from i on, to each j on m devices: by_devices_[m][j]; those on all of them go
  /// to `server_`.
  void fill_servers(int i) {
    by_devices_.assign(servers_.devices + 1, std::vector<double>(size_, kImpossible));
    // A run from here on may be replicated on all servers, or on all but one.
    const double longest = achieved_ * static_cast<double>(i == 0 ? servers_.count : servers_.count - 1);
    for (const int j : states_.after(i)) {
      for (int64_t m = 1; m <= servers_.devices; ++m) {
        if (work_[j] - work_[i] > longest * static_cast<double>(m)) continue;
        double best = std::min(longest, inside_seconds(i, j, m));
        for (int64_t last = 1; last < m; ++last) {
          const double* later = &later_[last][at(j, 0)];
          const double* before = by_devices_[m - last].data();
          // Neither side of a better one has more work than it can do in that time.
          const double least = work_[j] - best * static_cast<double>(last);
          const double most = work_[i] + best * static_cast<double>(m - last);
          const auto begin = std::max<int64_t>(
              i + 1, std::lower_bound(largest_before_.begin(), largest_before_.end(), least * (1 - 1e-12)) -
                         largest_before_.begin());
          const auto end = std::min<int64_t>(
              j, std::upper_bound(smallest_after_.begin(), smallest_after_.end(), most * (1 + 1e-12)) -
                     smallest_after_.begin());
          for (int64_t k = begin; k < end; ++k) best = std::min(best, std::max(before[k], later[k]));
        }
        by_devices_[m][j] = best;
      }
      server_[at(j, i)] = by_devices_[servers_.devices][j];
    }
  }

  /// The run's stages, the last one first, in servers from `first_server` on.
  void add_run(const Run& run, int end, int64_t first_server, PipeDreamPlan* plan) {
    const int i = run.begin;
    fill_servers(i);
    int64_t devices = servers_.devices;
    for (int j = end; j > i;) {
      int from = i;
      int64_t replicas = devices;
      const double best = by_devices_[devices][j];
      if (inside_seconds(i, j, devices) > best) {
        for (int k = i + 1; k < j && from == i; ++k) {
          for (int64_t last = 1; last < devices && from == i; ++last) {
            if (std::max(by_devices_[devices - last][k], later_[last][at(j, k)]) > best) continue;
            from = k;
            replicas = last;
          }
        }
        PW_CHECK(from > i, "the table has a way to each of its values");
      }
      devices -= replicas;
      PipeDreamStage& stage = plan->stages.emplace_back();
      const NodeSet nodes = states_.states[j].done - states_.states[from].done;
      for (size_t v = nodes.find_first(); v != NodeSet::npos; v = nodes.find_next(v))
        stage.nodes.push_back(static_cast<int>(v));
      for (int64_t r = 0; r < replicas; ++r) {
        for (int64_t s = 0; s < run.servers; ++s)
          stage.ranks.push_back((first_server + s) * servers_.devices + devices + r);
      }
      j = from;
    }
  }

  const States& states_;
  int size_;
  Servers servers_;
  std::vector<double> work_, bytes_, cut_;  ///< by cut
  std::vector<double> largest_before_, smallest_after_;
  std::vector<std::vector<double>> later_;       ///< by replicas, then at(): a stage with one before it
  std::vector<std::vector<double>> by_devices_;  ///< by devices, then by end
  std::vector<double> server_;                   ///< at()
  double achieved_ = kImpossible;                ///< seconds of a plan
};

}  // namespace

int64_t pipedream_cut_bytes(const Dataflow& flow, const NodeSet& done) {
  if (done.none() || done.all()) return 0;
  const NodeSet dropped = dropped_nodes(flow);
  NodeSet state(flow.size());
  for (size_t x = done.find_first(); x != NodeSet::npos; x = done.find_next(x)) {
    if (dropped.test(x)) continue;
    const auto& after = flow.successors[x];
    if (std::any_of(after.begin(), after.end(), [&](int r) { return done.test(r) && !dropped.test(r); }))
      continue;
    state.set(x);
    const NodeSet& known = flow.ancestors[x];
    for (size_t p = known.find_first(); p != NodeSet::npos; p = known.find_next(p)) {
      for (const int reader : flow.successors[p]) {
        if (!dropped.test(reader) && !known.test(reader) && reader != static_cast<int>(x)) state.set(p);
      }
    }
  }
  int64_t bytes = 0;
  for (size_t x = state.find_first(); x != NodeSet::npos; x = state.find_next(x)) {
    for (const ProfiledValue& output : flow.profile.nodes[x].outputs) bytes += output.bytes;
  }
  return bytes;
}

PipeDreamPlan search_pipedream(const Profile& profile, const Topology& topology) {
  const Servers servers = servers_of(topology);
  const Dataflow flow(profile);
  const States states = states_of(flow, walked_cuts(flow));
  const double entries = static_cast<double>(states.size()) * states.size() * (servers.devices + 1);
  if (entries > kMostEntries) {
    throw InputError("--objective pipedream: " + std::to_string(states.size()) + " cuts on " +
                         std::to_string(servers.devices) + " devices are more than its table has room for",
                     "Ask for fewer devices, or use --objective pipewright.");
  }
  return Recursion(flow, states, servers).plan();
}

}  // namespace pipewright
