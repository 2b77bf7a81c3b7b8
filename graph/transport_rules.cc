#include "graph/transport_rules.h"

#include "graph/rows.h"

namespace pipewright {

const std::vector<TransportFacts>& transport_rules() {
  static const std::vector<TransportFacts> rows = {
      {"auto", true, true, DeviceWay::kFastest,
       "memory within a host, TCP between hosts; GPUs the fastest way"},
      {"gloo", false, true, DeviceWay::kHost, "TCP"},
      {"nccl", true, true, DeviceWay::kNccl, "GPUs by NCCL, or not at all"},
      {"shm", true, false, DeviceWay::kHost, "memory that ranks of one host share"},
  };
  return rows;
}

const TransportFacts& transport_facts(const std::string& name) {
  return row_named(transport_rules(), "transport", name);
}

}  // namespace pipewright
