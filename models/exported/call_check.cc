#include "models/exported/call_check.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

#include "graph/error.h"
#include "models/run/interpreter.h"
#include "models/run/operators.h"

namespace pipewright {
namespace {

template <typename Value>
const Value* given(const Node& node, const std::string& name) {
  for (const auto& [key, argument] : node.arguments) {
    if (key == name) return std::get_if<Value>(&argument);
  }
  return nullptr;
}

const TensorType* type_of(const Graph& graph, const std::string& name) {
  if (const auto value = graph.values.find(name); value != graph.values.end()) return &value->second;
  for (const Parameter& parameter : graph.parameters)
    if (parameter.name == name) return &parameter.type;
  for (const Buffer& buffer : graph.buffers)
    if (buffer.name == name) return &buffer.type;
  return nullptr;
}

/// What shares its argument's memory whatever the tensor is like: what may copy it instead (reshape,
/// contiguous, to) is none of these.
bool is_always_view(const Node& node) {
  static const std::set<std::string> names = {
      "alias",           "as_strided",  "broadcast_to", "chunk",
      "detach",          "diagonal",    "expand",       "expand_as",
      "movedim",         "moveaxis",    "narrow",       "permute",
      "select",          "slice",       "split",        "split_with_sizes",
      "squeeze",         "swapaxes",    "swapdims",     "t",
      "tensor_split",    "transpose",   "unbind",       "unflatten",
      "unfold",          "unsqueeze",   "view",         "view_as",
      "view_as_complex", "view_as_real"};
  const std::string space = "aten::";
  return node.op.starts_with(space) && names.count(node.op.substr(space.size())) != 0;
}

/// Bytes of the memory that the tensor lies in, at most: of what it is a view of, if it is one.
int64_t bytes_of_storage(const Graph& graph, const std::unordered_map<std::string, const Node*>& makers,
                         std::string name) {
  // A node reads what stands before it, so this ends.
  for (auto made = makers.find(name); made != makers.end() && is_always_view(*made->second);
       made = makers.find(name)) {
    const auto* self = given<TensorArgument>(*made->second, "self");
    if (self == nullptr) break;
    name = self->name;
  }
  const TensorType* type = type_of(graph, name);
  return type == nullptr ? 0 : type->bytes();
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
  std::unordered_map<std::string, const Node*> makers;
  for (const Node& node : graph.nodes) {
    for (const std::string& name : node.outputs) makers.emplace(name, &node);
    if (!node.op.starts_with("aten::as_strided")) continue;
    const auto* self = given<TensorArgument>(node, "self");
    const auto* sizes = given<std::vector<int64_t>>(node, "size");
    const auto* strides = given<std::vector<int64_t>>(node, "stride");
    const auto* offset = given<int64_t>(node, "storage_offset");
    if (self == nullptr || sizes == nullptr || strides == nullptr) continue;  // refused by its schema
    const TensorType* type = type_of(graph, self->name);
    if (type == nullptr) continue;  // the graph's own check says it
    const int64_t room = bytes_of_storage(graph, makers, self->name);
    const int64_t bytes = reach(*sizes, *strides, offset == nullptr ? 0 : *offset, dtype_bytes(type->dtype));
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
