// How the ranks of a job find each other's store.
#pragma once

#include <chrono>
#include <string>

#include "runtime/launch/place.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// Serves the job's store where the place says. InputError if the port is taken.
Store serve_store(const Place& place);

/// Joins the job's store, waiting for it for `patience`: ranks start at different times, a scheduler may
/// place them one after the other. After 3 s, and then at growing intervals, it says on standard error for
/// whom. PeerError at the end; Error with the signal's code if one comes meanwhile.
Store join_store(const Place& place, std::chrono::milliseconds patience);

/// Takes the rank's place. InputError if it is taken: two jobs at one address, and the second one's ranks
/// must not disturb the first.
void claim_rank(Store& store, const Place& place);

/// For ConnectSettings: ranks that meet at the loopback address are all on this host.
std::string gloo_address_of(const Place& place);

}  // namespace pipewright
