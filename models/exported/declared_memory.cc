#include "models/exported/declared_memory.h"

#include <unordered_map>

#include "graph/error.h"
#include "graph/units.h"
#include "models/run/operators.h"
#include "models/run/storages.h"

namespace pipewright {
namespace {

/// As a double: sizes may multiply to more than 63 bits.
double bytes_of(const TensorType& type) {
  double bytes = static_cast<double>(dtype_bytes(type.dtype));
  for (const int64_t extent : type.shape) bytes *= static_cast<double>(extent);
  return bytes;
}

}  // namespace

void check_declared_memory(const Graph& graph, const MemoryThere& there) {
  const Storages storages(graph);
  std::unordered_map<std::string, const TensorType*> types;
  for (const auto& [name, type] : graph.values) types.emplace(name, &type);
  for (const Parameter& parameter : graph.parameters) types.emplace(parameter.name, &parameter.type);
  for (const Buffer& buffer : graph.buffers) types.emplace(buffer.name, &buffer.type);
  for (const Node& node : graph.nodes) {
    // Of what shares memory the least: an expanded view is larger than what it is a view of.
    std::unordered_map<size_t, std::pair<double, const TensorType*>> pieces;
    const auto add = [&](const std::string& name) {
      const TensorType& type = *types.at(name);
      const double bytes = bytes_of(type);
      const auto [piece, is_new] = pieces.try_emplace(storages.class_of(name), bytes, &type);
      if (!is_new && bytes < piece->second.first) piece->second = {bytes, &type};
    };
    for (const std::string& name : node.reads()) add(name);
    for (const std::string& name : node.outputs) add(name);
    double bytes = 0;
    std::pair<double, const TensorType*> largest{-1, nullptr};
    for (const auto& [number, piece] : pieces) {
      bytes += piece.first;
      if (piece.first > largest.first) largest = piece;
    }
    if (bytes <= static_cast<double>(there.bytes)) continue;
    throw InputError(
        label_of(node) + ": its tensors take " + format_bytes(bytes) + ", the largest is " +
            largest.second->text() + "; " + format_bytes(static_cast<double>(there.bytes)) + " " + there.what,
        "A smaller --batch-size, or a machine with more memory. From a stranger's file it may be meant to "
        "fill yours.");
  }
}

}  // namespace pipewright
