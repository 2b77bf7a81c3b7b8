// How the ranks of a job find each other's store.
#pragma once

#include <chrono>
#include <string>

#include "runtime/place.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// Ranks start at different times: a scheduler may place them one after the other. Dead ones are noticed
/// earlier.
constexpr auto kStartPatience = std::chrono::minutes(5);

/// Joins the job's store, waiting for it for kStartPatience. PeerError then; Error with the signal's code if
/// one comes meanwhile.
Store join_store(const Place& place);

/// Takes the rank's place. InputError if it is taken: two jobs at one address, and the second one's ranks
/// must not disturb the first.
void claim_rank(Store& store, const Place& place);

/// For ConnectSettings: ranks that meet at the loopback address are all on this host.
std::string gloo_address_of(const Place& place);

}  // namespace pipewright
