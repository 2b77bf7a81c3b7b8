#include "models/definition/variances.h"

#include <string>

#include "graph/error.h"

namespace pipewright {
namespace {

template <typename Value>
const Value* norm_argument(const Node& node, const std::string& name) {
  for (const auto& [key, argument] : node.arguments)
    if (key == name) return std::get_if<Value>(&argument);
  return nullptr;
}

/// Norms that take statistics of their input where an argument says so.
struct Norm {
  const char* op;
  const char* input;
  const char* trains;
  bool per_sample;  ///< of each channel of each sample, else of each channel
};
constexpr Norm kNorms[] = {{"aten::batch_norm", "input", "training", false},
                           {"aten::instance_norm", "input", "use_input_stats", true}};

}  // namespace

void check_variances(const Graph& training) {
  for (const Node& node : training.nodes) {
    for (const Norm& norm : kNorms) {
      const auto* trains = norm_argument<bool>(node, norm.trains);
      const auto* input = norm_argument<TensorArgument>(node, norm.input);
      if (node.op != norm.op || trains == nullptr || !*trains || input == nullptr) continue;
      const auto value = training.values.find(input->name);
      if (value == training.values.end() || value->second.shape.size() < 2) continue;
      const std::vector<int64_t>& shape = value->second.shape;
      const int64_t statistics = norm.per_sample ? shape[0] * shape[1] : shape[1];
      if (value->second.elements() != statistics) continue;
      std::string text;
      for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
      throw InputError(training.name + ": " + (node.layer.empty() ? node.name : node.layer) + ": " +
                       node.op.substr(node.op.find("::") + 2) + ": one value per channel, of shape (" + text +
                       "), has no variance; expected a larger image or minibatch");
    }
  }
}

}  // namespace pipewright
