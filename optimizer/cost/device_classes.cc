#include "optimizer/cost/device_classes.h"

#include <iterator>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"

namespace pipewright {

std::vector<int> classes_of_devices(const Topology& topology, const ClassProfiles& classes) {
  std::vector<int> numbers;
  bool any = false;
  std::vector<std::string> known;
  for (const auto& [name, profile] : classes) known.push_back(name);
  for (size_t d = 0; d < topology.devices.size(); ++d) {
    const std::string& name = topology.devices[d].device_class;
    const auto found = classes.find(name);
    if (!name.empty() && found == classes.end()) {
      throw InputError("topology: device " + std::to_string(d) + " is of class " + in_quotes(name) +
                           ", which no profile was measured on" + suggestion(name, known),
                       "Give one: --class-profile " + name + "=profile.json");
    }
    numbers.push_back(name.empty() ? 0 : 1 + static_cast<int>(std::distance(classes.begin(), found)));
    any = any || !name.empty();
  }
  if (!any) numbers.clear();
  return numbers;
}

std::vector<std::vector<PassSeconds>> seconds_by_class(const Profile& profile, const ClassProfiles& classes) {
  std::vector<std::vector<PassSeconds>> seconds;
  for (const auto& [name, measured] : classes) {
    const auto refuse = [&name = name](const std::string& what) {
      throw InputError(
          "--class-profile " + name + ": " + what,
          "Profile the same model, with the same options and minibatch, on a device of that class.");
    };
    if (measured.minibatch_samples > 0 && profile.minibatch_samples > 0 &&
        measured.minibatch_samples != profile.minibatch_samples) {
      refuse("is of minibatches of " + std::to_string(measured.minibatch_samples) +
             " samples; the profile of " + std::to_string(profile.minibatch_samples));
    }
    std::map<std::string, PassSeconds> by_name;
    for (const ProfiledNode& node : measured.nodes) by_name[node.name] = node.pass_seconds();
    std::vector<PassSeconds> nodes;
    for (const ProfiledNode& node : profile.nodes) {
      const auto found = by_name.find(node.name);
      if (found == by_name.end())
        refuse("lacks node " + in_quotes(node.name) + " of the profile of " + in_quotes(profile.model));
      nodes.push_back(found->second);
    }
    if (measured.nodes.size() != profile.nodes.size()) {
      refuse("has " + std::to_string(measured.nodes.size()) + " nodes; the profile " +
             std::to_string(profile.nodes.size()));
    }
    seconds.push_back(std::move(nodes));
  }
  return seconds;
}

}  // namespace pipewright
