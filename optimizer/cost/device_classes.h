// Devices that differ node by node: classes that a topology names, each with a profile of its own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "graph/topology.h"

namespace pipewright {

/// By name of the class: the model measured on one of its devices. Only times are looked at. A device of no
/// class is what the profile that is planned for was measured on.
using ClassProfiles = std::map<std::string, Profile>;

/// By device: 0 for none, k for the k-th class by name. Empty if no device is of a class. InputError for a
/// class without a profile.
std::vector<int> classes_of_devices(const Topology& topology, const ClassProfiles& classes);

/// By class, the k-th at [k - 1], and by node of `profile`: pass_seconds(). InputError unless each class
/// was measured with the nodes and the minibatch of `profile`.
std::vector<std::vector<PassSeconds>> seconds_by_class(const Profile& profile, const ClassProfiles& classes);

}  // namespace pipewright
