#include "models/definition/model.h"

namespace pipewright {

int64_t parameter_count(const Graph& graph) {
  int64_t count = 0;
  for (const Parameter& parameter : graph.parameters) count += parameter.type.elements();
  return count;
}

}  // namespace pipewright
