#include "runtime/train/model_flops.h"

#include <algorithm>
#include <set>

#include "runtime/stage/partition.h"

namespace pipewright {
namespace {

// A node as the formulas see it.
class Call {
 public:
  Call(const Node& node, const std::map<std::string, TensorType>& types) : node_(node), types_(types) {}

  const Argument* find(const std::string& name) const {
    for (const auto& [key, value] : node_.arguments)
      if (key == name) return &value;
    return nullptr;
  }
  // The tensor given for an argument; one of no elements where there is none.
  TensorType tensor(const std::string& name) const {
    const Argument* argument = find(name);
    const auto* named = argument ? std::get_if<TensorArgument>(argument) : nullptr;
    return named ? type(named->name) : TensorType{"float32", {0}};
  }
  TensorType output() const { return type(node_.outputs.front()); }
  TensorType type(const std::string& name) const {
    const auto found = types_.find(name);
    return found == types_.end() ? TensorType{"float32", {0}} : found->second;
  }
  bool flag(const std::string& name) const {
    const Argument* argument = find(name);
    const auto* value = argument ? std::get_if<bool>(argument) : nullptr;
    return value && *value;
  }

 private:
  const Node& node_;
  const std::map<std::string, TensorType>& types_;
};

double elements(const TensorType& type) { return static_cast<double>(type.elements()); }
double extent(const TensorType& type, size_t from_behind) {
  return type.shape.size() < from_behind ? 1
                                         : static_cast<double>(type.shape[type.shape.size() - from_behind]);
}

// Multiplications: each element of the result sums over the last dimension of the left factor.
double product(const Call& call, const char* left) {
  return elements(call.output()) * extent(call.tensor(left), 1);
}

// By the elements of a filter: those of the weight for one of its first dimension.
double convolution(const Call& call, bool transposed) {
  const TensorType weight = call.tensor("weight");
  const double filter = weight.shape.empty() || weight.shape[0] == 0
                            ? 0
                            : elements(weight) / static_cast<double>(weight.shape[0]);
  return filter * elements(transposed ? call.tensor("input") : call.output());
}

double attention(const Call& call) {
  const TensorType query = call.tensor("query");
  return elements(query) / std::max(1.0, extent(query, 1)) * extent(call.tensor("key"), 2) *
         (extent(query, 1) + extent(call.tensor("value"), 1));
}

// Every matrix of a recurrent layer is applied to every position.
double recurrent(const Call& call) {
  const TensorType input = call.tensor("input");
  const Argument* weights = call.find("params");
  const auto* names = weights ? std::get_if<TensorsArgument>(weights) : nullptr;
  double sum = 0;
  for (const std::string& name : names ? names->names : std::vector<std::string>()) {
    const TensorType weight = call.type(name);
    if (weight.shape.size() == 2) sum += elements(weight);
  }
  return sum * elements(input) / std::max(1.0, extent(input, 1));
}

struct Row {
  const char* op;
  double (*multiplications)(const Call&);
  std::vector<const char*> operands;  // each has a gradient as dear as the forward; none: two such in all
};

const std::vector<Row>& rows() {
  static const auto conv = [](const Call& call) { return convolution(call, false); };
  static const auto transposed = [](const Call& call) { return convolution(call, true); };
  static const auto either = [](const Call& call) { return convolution(call, call.flag("transposed")); };
  static const std::vector<Row> rows = {
      {"aten::linear", [](const Call& c) { return product(c, "input"); }, {"input", "weight"}},
      {"aten::matmul", [](const Call& c) { return product(c, "self"); }, {"self", "other"}},
      {"aten::mm", [](const Call& c) { return product(c, "self"); }, {"self", "mat2"}},
      {"aten::bmm", [](const Call& c) { return product(c, "self"); }, {"self", "mat2"}},
      {"aten::mv", [](const Call& c) { return product(c, "self"); }, {"self", "vec"}},
      {"aten::dot", [](const Call& c) { return product(c, "self"); }, {"self", "tensor"}},
      {"aten::addmm", [](const Call& c) { return product(c, "mat1"); }, {"mat1", "mat2"}},
      {"aten::baddbmm", [](const Call& c) { return product(c, "batch1"); }, {"batch1", "batch2"}},
      {"aten::conv1d", conv, {"input", "weight"}},
      {"aten::conv2d", conv, {"input", "weight"}},
      {"aten::conv3d", conv, {"input", "weight"}},
      {"aten::convolution", either, {"input", "weight"}},
      {"aten::conv_transpose1d", transposed, {"input", "weight"}},
      {"aten::conv_transpose2d", transposed, {"input", "weight"}},
      {"aten::conv_transpose3d", transposed, {"input", "weight"}},
      {"aten::scaled_dot_product_attention", attention, {}},
      {"aten::lstm", recurrent, {}},
      {"aten::gru", recurrent, {}},
      {"aten::rnn_tanh", recurrent, {}},
      {"aten::rnn_relu", recurrent, {}},
  };
  return rows;
}

}  // namespace

ModelFlops count_flops(const Graph& graph) {
  std::map<std::string, TensorType> types = graph.values;
  std::set<std::string> takes_gradient = differentiable_values(graph);
  for (const Parameter& parameter : graph.parameters) {
    types[parameter.name] = parameter.type;
    if (parameter.trainable) takes_gradient.insert(parameter.name);
  }
  for (const Buffer& buffer : graph.buffers) types[buffer.name] = buffer.type;

  ModelFlops flops;
  for (const Node& node : graph.nodes) {
    const auto row =
        std::find_if(rows().begin(), rows().end(), [&](const Row& each) { return node.op == each.op; });
    if (row == rows().end() || node.outputs.empty()) continue;
    const Call call(node, types);
    const double forward = 2 * row->multiplications(call);
    flops.forward += forward;
    flops.training += forward;
    if (!takes_gradient.count(node.outputs.front())) continue;
    if (row->operands.empty()) flops.training += 2 * forward;
    for (const char* operand : row->operands) {
      const Argument* argument = call.find(operand);
      const auto* named = argument ? std::get_if<TensorArgument>(argument) : nullptr;
      if (named && takes_gradient.count(named->name)) flops.training += forward;
    }
  }
  return flops;
}

}  // namespace pipewright
