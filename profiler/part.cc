#include "profiler/part.h"

namespace pipewright {

Part whole_part(const Graph& graph) {
  const std::string& loss = graph.outputs.at(0);
  return {0, graph.nodes.size(), {loss}, {loss}, 0};
}

std::map<std::string, size_t> last_readers(const Graph& graph) {
  std::map<std::string, size_t> last;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    for (const std::string& name : graph.nodes[i].reads()) last[name] = i;
  return last;
}

Part part_between(const Graph& graph, const std::map<std::string, size_t>& last_reader, size_t begin,
                  size_t end) {
  Part part = {begin, end, {}, {}, 0};
  for (size_t i = begin; i < end; ++i) {
    for (const std::string& name : graph.nodes[i].outputs) {
      const auto last = last_reader.find(name);
      if (name == graph.outputs.at(0) || (last != last_reader.end() && last->second >= end))
        part.leaving.push_back(name);
    }
  }
  part.with_gradient.insert(part.leaving.begin(), part.leaving.end());
  return part;
}

}  // namespace pipewright
