// How the ranks of a job find each other's store.
#pragma once

#include <chrono>
#include <string>

#include "runtime/launch/place.h"
#include "runtime/transport/store.h"

namespace pipewright {

/// Serves the job's store where the place says. InputError if the port is taken; Error with the signal's code
/// if one comes while a name server is asked.
Store serve_store(const Place& place);

/// Joins the store that a launcher serves, without taking the rank's place: for what is settled before the
/// rank begins. PeerError if it does not answer within `patience`.
Store visit_store(const Place& place, std::chrono::milliseconds patience);

struct JoinedStore {
  Store store;
  Store for_control;  ///< another connection
};

/// Joins the job's store and takes the rank's place, waiting for the store for `patience`: ranks start at
/// different times, a scheduler may place them one after the other. After 3 s, and then at growing intervals,
/// it says on standard error for whom, and who else answers there. PeerError at the end; Error with the
/// signal's code if one comes meanwhile. InputError if the place is taken: two jobs at one address, and the
/// second one's ranks must not disturb the first.
JoinedStore join_store(const Place& place, std::chrono::milliseconds patience);

/// For ConnectSettings: ranks that meet at the loopback address are all on this host.
std::string gloo_address_of(const Place& place);

}  // namespace pipewright
