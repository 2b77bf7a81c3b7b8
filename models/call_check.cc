#include "models/call_check.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "graph/error.h"
#include "models/interpreter.h"
#include "models/operators.h"
#include "models/storages.h"

namespace pipewright {
namespace {

template <typename Value>
const Value* given(const Node& node, const std::string& name) {
  for (const auto& [key, argument] : node.arguments) {
    if (key == name) return std::get_if<Value>(&argument);
  }
  return nullptr;
}

/// Bytes of the largest tensor of each piece of memory: the others are views of it.
std::unordered_map<size_t, int64_t> bytes_of_storages(const Graph& graph, const Storages& storages) {
  std::unordered_map<size_t, int64_t> bytes;
  const auto add = [&](const std::string& name, const TensorType& type) {
    int64_t& most = bytes[storages.class_of(name)];
    most = std::max(most, type.bytes());
  };
  for (const auto& [name, type] : graph.values) add(name, type);
  for (const Parameter& parameter : graph.parameters) add(parameter.name, parameter.type);
  for (const Buffer& buffer : graph.buffers) add(buffer.name, buffer.type);
  return bytes;
}

int64_t element_bytes(const Graph& graph, const std::string& name) {
  if (const auto value = graph.values.find(name); value != graph.values.end())
    return dtype_bytes(value->second.dtype);
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.name == name) return dtype_bytes(parameter.type.dtype);
  }
  for (const Buffer& buffer : graph.buffers) {
    if (buffer.name == name) return dtype_bytes(buffer.type.dtype);
  }
  return 1;
}

/// Bytes from the beginning of the memory to behind the last element; -1 if that is no number of 63 bits, or
/// an extent or a stride is negative.
int64_t reach(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset,
              int64_t width) {
  if (sizes.size() != strides.size() || offset < 0) return -1;
  int64_t last = offset;
  bool fits = true, empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) return -1;
    empty = empty || sizes[i] == 0;
    int64_t step = 0;
    fits = fits && !__builtin_mul_overflow(std::max<int64_t>(sizes[i] - 1, 0), strides[i], &step) &&
           !__builtin_add_overflow(last, step, &last);
  }
  int64_t bytes = 0;
  fits = fits && !__builtin_add_overflow(last, 1, &last) && !__builtin_mul_overflow(last, width, &bytes);
  if (!fits) return -1;
  return empty ? 0 : bytes;
}

void check_views(const Graph& graph) {
  const Storages storages(graph);
  std::unordered_map<size_t, int64_t> held;
  for (const Node& node : graph.nodes) {
    if (!node.op.starts_with("aten::as_strided")) continue;
    const auto* self = given<TensorArgument>(node, "self");
    const auto* sizes = given<std::vector<int64_t>>(node, "size");
    const auto* strides = given<std::vector<int64_t>>(node, "stride");
    const auto* offset = given<int64_t>(node, "storage_offset");
    if (self == nullptr || sizes == nullptr || strides == nullptr) continue;  // refused by its schema
    if (held.empty()) held = bytes_of_storages(graph, storages);
    const int64_t room = held[storages.class_of(self->name)];
    const int64_t bytes =
        reach(*sizes, *strides, offset == nullptr ? 0 : *offset, element_bytes(graph, self->name));
    if (bytes < 0 || bytes > room) {
      throw InputError(label_of(node) + ": sizes, strides and offset reach " +
                       (bytes < 0 ? std::string("nowhere in memory") : "byte " + std::to_string(bytes)) +
                       ", beyond the " + std::to_string(room) + " bytes that '" + self->name + "' has");
    }
  }
}

}  // namespace

void check_calls(const Graph& graph) {
  std::vector<size_t> nodes(graph.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  const Segment prepared(graph, nodes, graph.outputs);
  check_views(graph);
}

}  // namespace pipewright
