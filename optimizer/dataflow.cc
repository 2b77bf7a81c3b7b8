#include "optimizer/dataflow.h"

#include <algorithm>
#include <map>

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

// Nodes by the parameters they share and the sets they are in, transitively: a-b by one name and b-c by
// another is one group.
std::vector<NodeSet> tied_groups(const Profile& profile) {
  const size_t count = profile.nodes.size();
  std::map<std::string, NodeSet> users;
  for (size_t v = 0; v < count; ++v) {
    for (const std::string& name : profile.nodes[v].parameters) {
      users.try_emplace(name, NodeSet(count)).first->second.set(v);
    }
  }
  std::vector<NodeSet> sets = together_sets(profile);
  for (auto& [name, group] : users) sets.push_back(std::move(group));
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

Dataflow::Dataflow(const Profile& the_profile, const ClassProfiles& classes)
    : profile(the_profile), class_seconds(seconds_by_class(the_profile, classes)) {
  const int count = static_cast<int>(profile.nodes.size());
  predecessors.resize(count);
  successors.resize(count);
  ancestors.assign(count, NodeSet(count));
  values_made.resize(count);
  values_read.resize(count);
  owns_parameters.assign(count, 1);

  if (profile.nodes.size() > kMostNodes) {
    throw InputError("profile of '" + profile.model + "': " + std::to_string(profile.nodes.size()) +
                         " nodes; this version plans for at most " + std::to_string(kMostNodes),
                     "Profile the model by layers, or merge nodes that belong together.");
  }
  // Sums of bytes stay exact, and so do small multiples of them.
  double all_bytes = 0;
  for (const ProfiledNode& node : profile.nodes) {
    all_bytes += static_cast<double>(node.saved_bytes) + static_cast<double>(node.parameter_bytes) +
                 static_cast<double>(node.buffer_bytes);
    for (const ProfiledValue& output : node.outputs) all_bytes += static_cast<double>(output.bytes);
  }
  if (all_bytes > static_cast<double>(kMostBytes >> 6)) {
    throw InputError("profile of '" + profile.model + "': its sizes add up to more than 140 TB on one device",
                     "Sizes are in bytes; profile again or correct the file.");
  }

  std::map<std::string, int> value_of;
  std::map<std::string, int> parameter_seen;
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
      values.push_back({output.bytes, v, {}});
    }
    if (!node.parameters.empty()) {
      owns_parameters[v] = 0;
      for (const std::string& name : node.parameters) {
        if (parameter_seen.emplace(name, v).second) owns_parameters[v] = 1;
      }
    }
  }
  for (DataflowValue& value : values) sort_unique(&value.readers);
  for (auto* lists : {&predecessors, &successors, &values_read}) {
    for (std::vector<int>& list : *lists) sort_unique(&list);
  }
  for (int v = 0; v < count; ++v) {
    int64_t transient = 0;
    for (const int value : values_read[v]) transient += values[value].bytes;
    for (const int value : values_made[v]) transient += values[value].bytes;
    transient_bytes.push_back(transient);
    saved_bytes.push_back(profile.nodes[v].saved_bytes);
    least_seconds.push_back(profile.nodes[v].compute_seconds());
    for (const std::vector<PassSeconds>& nodes : class_seconds) {
      const double seconds = nodes[v].forward_seconds + nodes[v].backward_seconds;
      least_seconds.back() = std::min(least_seconds.back(), seconds);
    }
  }
  tied = tied_groups(profile);
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
