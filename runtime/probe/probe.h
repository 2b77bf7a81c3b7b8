// Measures the links between ranks, and writes what a topology document says of them.
#pragma once

#include <string>

#include "runtime/launch/place.h"

namespace pipewright {

struct ProbeSettings {
  std::string transport = "auto";
  double timeout_seconds = 30;
  double start_timeout_seconds = 300;
  std::string output = "topology.json";  ///< rank 0 writes it, and prints a table
};

/// One rank of at least two; every rank of the world calls it. What probe_plan() says is measured, one thing
/// after the other. PeerError as for training.
void probe(const Place& place, const ProbeSettings& settings);

}  // namespace pipewright
