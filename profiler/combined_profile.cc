#include "profiler/combined_profile.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/statistics.h"
#include "graph/units.h"
#include "profiler/profile_comparison.h"

namespace pipewright {
namespace {

using Measured = std::vector<MeasuredProfile>;

/// Of a number that all have.
double median_of(const Measured& measured, const std::function<double(const Profile&)>& number) {
  std::vector<double> numbers;
  for (const MeasuredProfile& one : measured) numbers.push_back(number(one.profile));
  return median(std::move(numbers));
}

/// Of one that some may lack: then nothing.
std::optional<double> median_if_all(const Measured& measured,
                                    const std::function<std::optional<double>(const Profile&)>& number) {
  std::vector<double> numbers;
  for (const MeasuredProfile& one : measured) {
    const std::optional<double> value = number(one.profile);
    if (!value) return std::nullopt;
    numbers.push_back(*value);
  }
  return median(std::move(numbers));
}

std::string entry_of(const Profile& profile, const std::string& key) {
  for (const auto& [name, value] : profile.provenance)
    if (name == key) return value;
  return "";
}

/// What they say under it, the same words once.
std::string entries_of(const Measured& measured, const std::string& key) {
  std::vector<std::string> entries;
  for (const MeasuredProfile& one : measured)
    if (const std::string entry = entry_of(one.profile, key);
        std::find(entries.begin(), entries.end(), entry) == entries.end())
      entries.push_back(entry);
  return join(entries, ", ");
}

/// The node with nothing that a look at a clock or an allocator gives.
ProfiledNode described(ProfiledNode node) {
  node = without_times(std::move(node));
  node.saved_bytes = node.workspace_bytes = 0;
  node.keeps.clear();
  return node;
}

void expect_same(const MeasuredProfile& first, const MeasuredProfile& other) {
  const auto compare = [&](const std::string& field, const std::string& expected, const std::string& got) {
    if (got != expected)
      throw InputError(other.name + ": " + field + ": got " + in_quotes(got) + ", expected " +
                           in_quotes(expected) + ", as in " + first.name,
                       "Only profiles of one model, measured in the same way on the same machine, are "
                       "combined. Next: measure it again as the others were.");
  };
  const Profile &a = first.profile, &b = other.profile;
  compare("model", a.model, b.model);
  compare("graph_digest", a.graph_digest, b.graph_digest);
  compare("minibatch_samples", std::to_string(a.minibatch_samples), std::to_string(b.minibatch_samples));
  compare("device", a.device, b.device);
  compare("threads", std::to_string(a.threads), std::to_string(b.threads));
  const auto cores_of = [](const Profile& profile) {
    return profile.whole.host_cores ? std::to_string(*profile.whole.host_cores) : "";
  };
  compare("whole.host_cores", cores_of(a), cores_of(b));
  for (const char* key : {"pipewright", "libtorch", "processor", "cuda", "data", "precision", "device_passes",
                          "parts", "optimizer"})
    compare(std::string("provenance.") + key, entry_of(a, key), entry_of(b, key));
  for (size_t i = 0; i < std::max(a.nodes.size(), b.nodes.size()); ++i) {
    const auto name = [i](const Profile& profile) {
      return i < profile.nodes.size() ? profile.nodes[i].name : std::string();
    };
    const std::string field = "nodes[" + std::to_string(i) + "]";
    compare(field + ".name", name(a), name(b));
    if (described(a.nodes[i]) != described(b.nodes[i]))
      throw InputError(other.name + ": " + field + ": node " + in_quotes(a.nodes[i].name) +
                       " is not the one of " + first.name);
  }
}

ProfiledNode combined_node(const Measured& measured, size_t i) {
  ProfiledNode node = measured.front().profile.nodes[i];
  const auto of_nodes = [&](double ProfiledNode::*field) {
    return median_of(measured, [&](const Profile& profile) { return profile.nodes[i].*field; });
  };
  for (double ProfiledNode::*field : {&ProfiledNode::forward_seconds, &ProfiledNode::backward_input_seconds,
                                      &ProfiledNode::backward_weight_seconds, &ProfiledNode::spread})
    node.*field = of_nodes(field);
  for (std::optional<double> ProfiledNode::*field :
       {&ProfiledNode::forward_launch_seconds, &ProfiledNode::backward_launch_seconds,
        &ProfiledNode::forward_gap_seconds, &ProfiledNode::backward_gap_seconds})
    node.*field = median_if_all(measured, [&](const Profile& profile) { return profile.nodes[i].*field; });
  for (const MeasuredProfile& one : measured) {
    node.saved_bytes = std::max(node.saved_bytes, one.profile.nodes[i].saved_bytes);
    node.workspace_bytes = std::max(node.workspace_bytes, one.profile.nodes[i].workspace_bytes);
  }
  return node;
}

bool all_have(const Measured& measured, const std::function<bool(const Profile&)>& it) {
  return std::all_of(measured.begin(), measured.end(),
                     [&](const MeasuredProfile& one) { return it(one.profile); });
}

std::optional<ProfiledUpdate> combined_update(const Measured& measured) {
  if (!all_have(measured, [](const Profile& profile) { return profile.whole.update.has_value(); }))
    return std::nullopt;
  ProfiledUpdate update;
  for (const ProfiledUpdateRow& row : profiled_update_rows())
    update.*row.value =
        median_of(measured, [&](const Profile& profile) { return (*profile.whole.update).*row.value; });
  return update;
}

std::optional<ProfiledCrowd> combined_crowd(const Measured& measured) {
  const std::optional<ProfiledCrowd>& first = measured.front().profile.whole.crowd;
  if (!first || !all_have(measured, [&](const Profile& profile) {
        return profile.whole.crowd && profile.whole.crowd->ranks == first->ranks;
      }))
    return std::nullopt;
  ProfiledCrowd crowd = *first;
  for (double ProfiledCrowd::*field :
       {&ProfiledCrowd::compute_factor, &ProfiledCrowd::update_factor,
        &ProfiledCrowd::replicas_compute_factor, &ProfiledCrowd::replicas_update_factor,
        &ProfiledCrowd::by_turns_compute_factor, &ProfiledCrowd::clock_factor, &ProfiledCrowd::other_cores,
        &ProfiledCrowd::reference_spread})
    crowd.*field = median_of(measured, [&](const Profile& profile) { return (*profile.whole.crowd).*field; });
  return crowd;
}

ProfiledWhole combined_whole(const Measured& measured) {
  ProfiledWhole whole;
  for (double ProfiledWhole::*field :
       {&ProfiledWhole::forward_seconds, &ProfiledWhole::backward_seconds, &ProfiledWhole::step_seconds})
    whole.*field = median_of(measured, [&](const Profile& profile) { return profile.whole.*field; });
  for (std::optional<double> ProfiledWhole::*field :
       {&ProfiledWhole::forward_launch_seconds, &ProfiledWhole::backward_launch_seconds})
    whole.*field = median_if_all(measured, [&](const Profile& profile) { return profile.whole.*field; });
  for (std::optional<int64_t> ProfiledWhole::*field :
       {&ProfiledWhole::allocated_bytes, &ProfiledWhole::library_bytes, &ProfiledWhole::input_bytes,
        &ProfiledWhole::uploaded_bytes}) {
    if (!all_have(measured, [&](const Profile& profile) { return (profile.whole.*field).has_value(); }))
      continue;
    whole.*field = 0;
    for (const MeasuredProfile& one : measured)
      whole.*field = std::max(*(whole.*field), *(one.profile.whole.*field));
  }
  whole.host_cores = measured.front().profile.whole.host_cores;
  whole.update = combined_update(measured);
  whole.crowd = combined_crowd(measured);
  return whole;
}

/// Half of how far apart the sums of all nodes lie, over the one of `combined`.
double half_range(const Measured& measured, const Profile& combined) {
  std::vector<double> sums;
  for (const MeasuredProfile& one : measured) sums.push_back(one.profile.compute_seconds());
  const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
  return combined.compute_seconds() > 0 ? (*most - *least) / 2 / combined.compute_seconds() : 0;
}

}  // namespace

Profile combined_profile(const Measured& measured) {
  if (measured.size() < 2)
    throw InputError("got " + std::to_string(measured.size()) + " profiles, expected two or more to combine");
  for (size_t i = 1; i < measured.size(); ++i) expect_same(measured.front(), measured[i]);
  Profile combined = measured.front().profile;
  for (size_t i = 0; i < combined.nodes.size(); ++i) combined.nodes[i] = combined_node(measured, i);
  combined.input_seconds = median_of(measured, [](const Profile& profile) { return profile.input_seconds; });
  combined.whole = combined_whole(measured);
  combined.whole.known_within = half_range(measured, combined);
  for (auto& [key, value] : combined.provenance) value = entries_of(measured, key);
  combined.combines.clear();
  for (const MeasuredProfile& one : measured) {
    combined.combines.push_back(document_digest(one.profile));
    combined.combines.insert(combined.combines.end(), one.profile.combines.begin(),
                             one.profile.combines.end());
  }
  return combined;
}

std::string sums_text(const Measured& measured, const Profile& combined, int64_t width) {
  TextTable table({{"profile", TableColumn::Side::kLeft, 0, 12}, {"sum of its nodes"}, {"difference"}});
  const auto add = [&](const std::string& name, const Profile& profile) {
    char part[32] = "";
    if (combined.compute_seconds() > 0)
      std::snprintf(part, sizeof part, "%+.1f %%",
                    100 * (profile.compute_seconds() / combined.compute_seconds() - 1));
    table.add({name, format_seconds(profile.compute_seconds()), part});
  };
  for (const MeasuredProfile& one : measured) add(one.name, one.profile);
  add("combined", combined);
  return table.text(width);
}

}  // namespace pipewright
