#include "profiler/profile_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/units.h"
#include "profiler/layers.h"

namespace pipewright {
namespace {

std::string percent_of(const char* format, double part) {
  char text[32];
  std::snprintf(text, sizeof text, format, 100 * part);
  return text;
}

}  // namespace

ProfiledNode without_times(ProfiledNode node) {
  node.forward_seconds = node.backward_input_seconds = node.backward_weight_seconds = node.spread = 0;
  node.forward_launch_seconds = node.backward_launch_seconds = std::nullopt;
  node.forward_gap_seconds = node.backward_gap_seconds = std::nullopt;
  return node;
}

ProfileComparison compare_profiles(const Profile& first, const Profile& second) {
  for (size_t i = 0; i < std::max(first.nodes.size(), second.nodes.size()); ++i) {
    const auto name = [&](const Profile& profile) {
      if (i >= profile.nodes.size()) return std::string("no node");
      return "node " + in_quotes(profile.nodes[i].name) + " of layer " + in_quotes(profile.nodes[i].layer);
    };
    if (name(first) != name(second))
      throw InputError("the profiles are not of the same nodes: at " + std::to_string(i) + " the first has " +
                       name(first) + ", the second " + name(second));
  }
  ProfileComparison comparison{first.compute_seconds(), second.compute_seconds(), {}, {}};
  if (comparison.first_seconds <= 0) throw InputError("the first profile has no times to compare with");
  const std::vector<LayerCost> a = layer_costs(first), b = layer_costs(second);
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].share >= kWeightyShare)
      comparison.layers.push_back({a[i].name, a[i].share, a[i].compute_seconds(), b[i].compute_seconds()});
  std::stable_sort(comparison.layers.begin(), comparison.layers.end(),
                   [](const LayerDifference& x, const LayerDifference& y) {
                     return std::abs(x.part()) > std::abs(y.part());
                   });
  for (size_t i = 0; i < first.nodes.size(); ++i)
    if (without_times(first.nodes[i]) != without_times(second.nodes[i]))
      comparison.other_bytes.push_back(first.nodes[i].name);
  return comparison;
}

std::string comparison_text(const ProfileComparison& comparison, int64_t width) {
  std::string text = "sum of all nodes: " + format_seconds(comparison.first_seconds) + " and " +
                     format_seconds(comparison.second_seconds) + ", " +
                     percent_of("%+.1f %%", comparison.part()) + "\n";
  const auto left = TableColumn::Side::kLeft;
  TextTable table({{"layer", left, 0, 12}, {"share"}, {"first"}, {"second"}, {"difference"}});
  size_t notable = 0;
  for (const LayerDifference& layer : comparison.layers) {
    if (std::abs(layer.part()) <= kNotableDifference) break;
    table.add({layer.name, percent_of("%.1f %%", layer.share), format_seconds(layer.first_seconds),
               format_seconds(layer.second_seconds), percent_of("%+.1f %%", layer.part())});
    ++notable;
  }
  text +=
      wrapped("of " + std::to_string(comparison.layers.size()) + " layers of " +
                  percent_of("%.0f %%", kWeightyShare) + " of the time or more " + std::to_string(notable) +
                  " differ by more than " + percent_of("%.0f %%", kNotableDifference) +
                  (comparison.layers.empty() ? std::string()
                                             : ", the most " + comparison.layers.front().name + " by " +
                                                   percent_of("%+.1f %%", comparison.layers.front().part())),
              width, 2) +
      "\n";
  if (notable > 0) text += "\n" + table.text(width) + "\n";
  text +=
      comparison.other_bytes.empty()
          ? "all else is equal\n"
          : wrapped("something else than times differs in " + std::to_string(comparison.other_bytes.size()) +
                        " nodes, first in " + in_quotes(comparison.other_bytes.front()),
                    width, 2) +
                "\n";
  return text;
}

}  // namespace pipewright
