// The links by which policies price plans: topology=FILE, or bandwidth=B of all of them.
#pragma once

#include <optional>
#include <string>

#include "graph/spec.h"
#include "graph/topology.h"

namespace pipewright {

struct PolicyLinks {
  std::optional<Topology> topology;
  double bandwidth_bytes_per_second = 0;  ///< without one
};

/// Of a policy's options; `policy` is what messages call it: "--adapt freeze". InputError for both of them,
/// and for a topology that cannot be read.
PolicyLinks policy_links(SpecOptions& options, const std::string& policy);

}  // namespace pipewright
