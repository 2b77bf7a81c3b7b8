// A part of a model that is measured in one piece; the whole model is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

struct Part {
  size_t begin = 0, end = 0;  ///< nodes of the graph: [begin, end)
  /// Values made here that later nodes read; where it is made here, the loss.
  std::vector<std::string> leaving;
  /// Of `leaving`: those whose gradient the loss gives, and the loss.
  std::set<std::string> with_gradient;
  int64_t need_bytes = 0;  ///< at most, to measure it; 0: not known
};

Part whole_part(const Graph& graph);

/// Position of the last node that reads each value, parameter and buffer.
std::map<std::string, size_t> last_readers(const Graph& graph);
/// As if a gradient came to all that leaves. `last_reader`: of last_readers().
Part part_between(const Graph& graph, const std::map<std::string, size_t>& last_reader, size_t begin,
                  size_t end);

}  // namespace pipewright
