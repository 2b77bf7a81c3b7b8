#include "optimizer/cost/dataflow.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"
#include "graph/limits.h"

namespace pipewright {
namespace {

/// Sets of ancestors and cuts take a bit for every pair of nodes: 256 MiB for so many.
constexpr size_t kMostNodes = 1 << 15;

void sort_unique(std::vector<int>* numbers) {
  std::sort(numbers->begin(), numbers->end());
  numbers->erase(std::unique(numbers->begin(), numbers->end()), numbers->end());
}

// The profile's sets `together`, by node.
std::vector<NodeSet> together_sets(const Profile& profile) {
  std::map<std::string, size_t> position;
  for (size_t v = 0; v < profile.nodes.size(); ++v) position.emplace(profile.nodes[v].name, v);
  std::vector<NodeSet> sets;
  for (const auto& names : profile.together) {
    sets.emplace_back(profile.nodes.size());
    for (const std::string& name : names) sets.back().set(position.at(name));
  }
  return sets;
}

// Nodes by the parameters they share (if those hold them together) and the sets they are in, transitively:
// a-b by one name and b-c by another is one group.
std::vector<NodeSet> inseparable(const Profile& profile, const std::vector<TiedGroup>& ties) {
  std::vector<NodeSet> sets = together_sets(profile);
  for (const TiedGroup& tie : ties) {
    sets.emplace_back(profile.nodes.size());
    for (const int v : tie.readers) sets.back().set(v);
  }
  std::vector<NodeSet> groups;
  for (const NodeSet& group : sets) {
    if (group.count() < 2) continue;
    NodeSet merged = group;
    std::vector<NodeSet> rest;
    for (NodeSet& other : groups) {
      if (other.intersects(merged)) {
        merged |= other;
      } else {
        rest.push_back(std::move(other));
      }
    }
    rest.push_back(std::move(merged));
    groups = std::move(rest);
  }
  return groups;
}

}  // namespace

std::vector<TiedGroup> tied_groups(const Profile& profile) {
  std::map<std::string, std::vector<int>> readers;
  std::vector<std::string> names;  // in order
  for (size_t v = 0; v < profile.nodes.size(); ++v) {
    for (const std::string& name : profile.nodes[v].parameters) {
      std::vector<int>& of_name = readers[name];
      if (of_name.empty()) names.push_back(name);
      if (of_name.empty() || of_name.back() != static_cast<int>(v)) of_name.push_back(static_cast<int>(v));
    }
  }
  std::vector<TiedGroup> groups;
  std::map<std::vector<int>, size_t> known;
  for (const std::string& name : names) {
    const std::vector<int>& of_name = readers.at(name);
    if (of_name.size() < 2) continue;
    const auto [at, fresh] = known.try_emplace(of_name, groups.size());
    if (fresh) groups.push_back({{}, of_name});
    groups[at->second].names.push_back(name);
  }
  for (TiedGroup& group : groups) {
    bool alone = false;
    bool any = false;
    for (const int v : group.readers) {
      const ProfiledNode& node = profile.nodes[static_cast<size_t>(v)];
      const std::set<std::string> parameters(node.parameters.begin(), node.parameters.end());
      const bool nothing_else = parameters.size() == group.names.size();
      if (alone || (any && !nothing_else && node.parameter_bytes >= group.parameter_bytes)) continue;
      group.parameter_bytes = node.parameter_bytes;
      group.trainable_bytes = node.trainable_parameter_bytes;
      alone = nothing_else;
      any = true;
    }
  }
  return groups;
}

Dataflow::Dataflow(const Profile& the_profile, const ClassProfiles& classes, Ties how)
    : profile(the_profile),
      ties(tied_groups(the_profile)),
      copies(how == Ties::kCopies),
      class_seconds(seconds_by_class(the_profile, classes)) {
  const int count = static_cast<int>(profile.nodes.size());
  predecessors.resize(count);
  successors.resize(count);
  ancestors.assign(count, NodeSet(count));
  values_made.resize(count);
  values_read.resize(count);

  if (profile.nodes.size() > kMostNodes) {
    throw InputError("profile of '" + profile.model + "': " + std::to_string(profile.nodes.size()) +
                         " nodes; this version plans for at most " + std::to_string(kMostNodes),
                     "Profile the model by layers, or merge nodes that belong together.");
  }
  // Sums of bytes stay exact, and so do small multiples of them.
  double all_bytes = 0;
  for (const ProfiledNode& node : profile.nodes) {
    for (const int64_t bytes :
         {node.saved_bytes, node.workspace_bytes, node.parameter_bytes, node.buffer_bytes})
      all_bytes += static_cast<double>(bytes);
    for (const ProfiledValue& output : node.outputs) all_bytes += static_cast<double>(output.bytes);
  }
  if (all_bytes > static_cast<double>(kMostBytes >> 6)) {
    throw InputError("profile of '" + profile.model + "': its sizes add up to more than 140 TB on one device",
                     "Sizes are in bytes; profile again or correct the file.");
  }

  std::map<std::string, int> value_of;
  for (int v = 0; v < count; ++v) {
    const ProfiledNode& node = profile.nodes[v];
    for (const std::string& input : node.inputs) {
      const auto found = value_of.find(input);
      if (found == value_of.end()) continue;  // an input of the graph
      DataflowValue& value = values[found->second];
      value.readers.push_back(v);
      values_read[v].push_back(found->second);
      predecessors[v].push_back(value.producer);
      successors[value.producer].push_back(v);
      ancestors[v].set(value.producer);
      ancestors[v] |= ancestors[value.producer];
    }
    for (const ProfiledValue& output : node.outputs) {
      value_of[output.name] = static_cast<int>(values.size());
      values_made[v].push_back(static_cast<int>(values.size()));
      values.push_back({output.bytes, v, {}, std::min(output.bytes, node.saved_bytes)});
    }
    for (const std::string& kept : node.keeps)
      if (const auto found = value_of.find(kept); found != value_of.end())
        values[found->second].keepers.push_back(v);
  }
  for (DataflowValue& value : values) sort_unique(&value.readers);
  for (auto* lists : {&predecessors, &successors, &values_read}) {
    for (std::vector<int>& list : *lists) sort_unique(&list);
  }
  PassSeconds launching, gaps;
  for (const ProfiledNode& node : profile.nodes) {
    launching += node.launch_pass();
    gaps += node.gap_pass();
  }
  if (!classes.empty()) class_factors.push_back(launched_factor(profile.nodes));
  for (const auto& [name, measured] : classes) class_factors.push_back(launched_factor(measured.nodes));
  captures = gaps.sum() > 0 && launching.sum() >= launched_seconds(profile.nodes).sum();
  for (int v = 0; v < count; ++v) {
    bytes.transient.push_back(profile.nodes[v].workspace_bytes);
    least_seconds.push_back(profile.nodes[v].compute_seconds());
    for (const std::vector<PassSeconds>& nodes : class_seconds) {
      const double seconds = nodes[v].forward_seconds + nodes[v].backward_seconds;
      least_seconds.back() = std::min(least_seconds.back(), seconds);
    }
  }
  count_saved();
  count_parameters();
  count_values();
  tied = inseparable(profile, copies ? std::vector<TiedGroup>() : ties);
}

int64_t unkept_bytes(const DataflowValue& value, const NodeSet& done) {
  const bool elsewhere = !value.keepers.empty() && std::none_of(value.keepers.begin(), value.keepers.end(),
                                                                [&](int k) { return done.test(k); });
  return elsewhere ? value.saved_bytes : 0;
}

std::vector<SentValue> sent_values(const std::vector<DataflowValue>& values, const NodeSet& done) {
  std::vector<SentValue> sent;
  for (const DataflowValue& value : values) {
    if (!done.test(value.producer)) continue;
    const bool goes_on =
        std::any_of(value.readers.begin(), value.readers.end(), [&](int r) { return !done.test(r); });
    if (goes_on)
      sent.push_back({value.producer, value.readers.back(), value.bytes, value.saved_bytes, value.freed_at});
  }
  return sent;
}

void Dataflow::count_saved() {
  for (const ProfiledNode& node : profile.nodes) bytes.freed.push_back(node.saved_bytes);
  for (int v = 0; v < size(); ++v) {
    const std::vector<int>& made = values_made[static_cast<size_t>(v)];
    int64_t kept = 0;
    for (const int number : made)
      if (!values[static_cast<size_t>(number)].keepers.empty())
        kept += values[static_cast<size_t>(number)].saved_bytes;
    const bool known = kept <= profile.nodes[static_cast<size_t>(v)].saved_bytes;
    for (const int number : made) {
      DataflowValue& value = values[static_cast<size_t>(number)];
      if (!known) value.keepers.clear();
      sort_unique(&value.keepers);
      // A node that keeps it through a view may be in a stage which has the view alone.
      const bool reads =
          !value.keepers.empty() &&
          std::binary_search(value.readers.begin(), value.readers.end(), value.keepers.front());
      value.freed_at = reads ? value.keepers.front() : v;
      bytes.freed[static_cast<size_t>(v)] -= value.saved_bytes;
      bytes.freed[static_cast<size_t>(value.freed_at)] += value.saved_bytes;
    }
  }
}

void Dataflow::count_values() {
  std::vector<int64_t> made(values_made.size(), 0);
  for (const DataflowValue& value : values) {
    made[static_cast<size_t>(value.producer)] += value.bytes;
    const int last = value.readers.empty() ? value.producer : value.readers.back();
    for (int v = value.producer; v <= last; ++v) bytes.transient[static_cast<size_t>(v)] += value.bytes;
  }
  for (size_t v = 0; v < made.size(); ++v)
    bytes.waiting_gradients.push_back(bytes.gradients[v] > 0 ? made[v] : 0);
}

void Dataflow::count_parameters() {
  std::vector<size_t> shared(profile.nodes.size(), 0);  // of a node's parameters, how many others read too
  for (const ProfiledNode& node : profile.nodes) {
    own_parameter_bytes.push_back(node.parameter_bytes);
    own_trainable_bytes.push_back(node.trainable_parameter_bytes);
  }
  for (const TiedGroup& tie : ties) {
    for (const int v : tie.readers) {
      const ProfiledNode& node = profile.nodes[v];
      const std::set<std::string> parameters(node.parameters.begin(), node.parameters.end());
      shared[v] += tie.names.size();
      const bool all = shared[v] == parameters.size();
      own_parameter_bytes[v] = all ? 0 : std::max<int64_t>(0, own_parameter_bytes[v] - tie.parameter_bytes);
      own_trainable_bytes[v] = all ? 0 : std::max<int64_t>(0, own_trainable_bytes[v] - tie.trainable_bytes);
    }
  }
  bytes.gradients = own_trainable_bytes;
  parameter_bytes = own_parameter_bytes;
  trainable_bytes = own_trainable_bytes;
  for (const TiedGroup& tie : ties) {
    parameter_bytes[tie.readers.front()] += tie.parameter_bytes;
    trainable_bytes[tie.readers.front()] += tie.trainable_bytes;
  }
}

std::string separated_tie(const Dataflow& flow, const NodeSet& done) {
  for (const NodeSet& group : flow.tied) {
    if (!group.intersects(done) || group.is_subset_of(done)) continue;
    for (size_t a = group.find_first(); a != NodeSet::npos; a = group.find_next(a)) {
      for (size_t b = group.find_next(a); b != NodeSet::npos; b = group.find_next(b)) {
        if (done.test(a) == done.test(b)) continue;
        const auto& of_a = flow.profile.nodes[a].parameters;
        for (const std::string& name : flow.profile.nodes[b].parameters) {
          if (std::find(of_a.begin(), of_a.end(), name) == of_a.end()) continue;
          return "'" + name + "', read by nodes '" + flow.profile.nodes[a].name + "' and '" +
                 flow.profile.nodes[b].name + "'";
        }
      }
    }
    for (const NodeSet& set : together_sets(flow.profile)) {
      if (!set.intersects(done) || set.is_subset_of(done)) continue;
      const size_t a = (set & done).find_first();
      const size_t b = (set - done).find_first();
      return "memory, written in place by nodes that include '" + flow.profile.nodes[a].name + "' and '" +
             flow.profile.nodes[b].name + "'";
    }
    PW_CHECK(false, "a tied group is connected by the names its nodes share and the sets they are in");
  }
  return "";
}

}  // namespace pipewright
