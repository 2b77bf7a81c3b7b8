// What a model costs whose first layers are frozen: the measured profile, changed once. All that plans,
// prices and simulates takes the result for the profile, and needs to know no more.
#pragma once

#include <cstdint>
#include <string>

#include "graph/profile.h"

namespace pipewright {

/// `measured` with its first `layers` layers frozen (graph/model_layers.h; 0: as it is). Their nodes cost
/// their forward alone: no backward, nothing saved for it, no gradients, slots and further versions. What
/// they read is trained by no later node either. `cached`: their forward costs nothing, since the first stage
/// reads what leaves the prefix from a cache (it keeps the weights, for what the cache has not), and no cut
/// is inside the prefix. Profile::frozen says all that. An update of all that is left takes its part of the
/// whole's. InputError if there are not so many layers; `where` says who asks.
Profile frozen_profile(const Profile& measured, int64_t layers, bool cached,
                       const std::string& where = "--frozen-layers");

/// Of one minibatch, what crosses the end of the first `layers` layers: what a cache keeps. InputError as
/// frozen_profile().
int64_t frozen_value_bytes(const Profile& measured, int64_t layers, const std::string& where);

/// Of the profile as it was measured: document_digest(), whatever is frozen in it.
std::string measured_digest(const Profile& profile);

}  // namespace pipewright
