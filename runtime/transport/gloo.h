// Gloo over TCP, through c10d.
#pragma once

#include <memory>
#include <string>

#include "graph/error.h"
#include "runtime/transport/store.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// Connects all ranks of the world with each other; every rank calls it. `address`: the host name or IP
/// address of this rank that its peers can reach ("127.0.0.1" on one host); "" takes the interface of
/// GLOO_SOCKET_IFNAME or the host name. `name` keeps the keys of several worlds in one store apart. Waits no
/// longer than `timeout`; PeerError then.
std::unique_ptr<Transport> make_gloo_transport(const Store& store, const std::string& name, int64_t rank,
                                               int64_t world_size, const std::string& address,
                                               std::chrono::milliseconds timeout);

/// That error, in words that say what to do.
PeerError no_gloo(int64_t rank, int64_t world_size, const std::string& why);

}  // namespace pipewright
