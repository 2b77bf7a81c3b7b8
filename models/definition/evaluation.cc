// What changes between training and evaluation is one argument of a few operators: a table.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/error.h"
#include "models/definition/literal.h"
#include "models/definition/model.h"

namespace pipewright {
namespace {

struct Rewrite {
  const char* op;
  const char* argument;
  Argument evaluation;
};

const std::vector<Rewrite>& rewrites() {
  static const std::vector<Rewrite> table = {
      {"aten::dropout", "train", false},
      {"aten::native_dropout", "train", false},
      {"aten::feature_dropout", "train", false},
      {"aten::alpha_dropout", "train", false},
      {"aten::feature_alpha_dropout", "train", false},
      {"aten::rrelu", "training", false},
      {"aten::dropout_", "train", false},
      {"aten::feature_dropout_", "train", false},
      {"aten::alpha_dropout_", "train", false},
      {"aten::feature_alpha_dropout_", "train", false},
      {"aten::rrelu_", "training", false},
      {"aten::scaled_dot_product_attention", "dropout_p", 0.0},
      {"aten::lstm", "train", false},
      {"aten::gru", "train", false},
      {"aten::rnn_tanh", "train", false},
      {"aten::rnn_relu", "train", false},
      {"aten::batch_norm", "training", false},
      {"aten::native_batch_norm", "training", false},
      {"aten::_native_batch_norm_legit", "training", false},
      {"aten::cudnn_batch_norm", "training", false},
      {"aten::instance_norm", "use_input_stats", false},
  };
  return table;
}

/// A norm without running statistics has nothing but its input's, in evaluation too (torch:
/// track_running_stats=False).
bool is_norm_without_statistics(const Node& node) {
  if (node.op.find("_norm") == std::string::npos) return false;
  return std::none_of(node.arguments.begin(), node.arguments.end(), [](const auto& argument) {
    return argument.first == "running_mean" && std::holds_alternative<TensorArgument>(argument.second);
  });
}

/// Stochastic depth as torchvision and timm write it: ones with probability p, drawn in place, then divided
/// by p. In evaluation all are kept: ones, divided by 1. What is drawn and not divided is something else, and
/// stays.
void keep_all_samples(Graph& graph) {
  std::map<std::string, double*> drawn;  // value -> its probability
  for (Node& node : graph.nodes) {
    if (node.op == "aten::bernoulli_") {
      if (auto* probability = literal<double>(node, "p")) drawn[node.outputs[0]] = probability;
    } else if (node.op == "aten::div_") {
      const auto* self = literal<TensorArgument>(node, "self");
      auto* divisor = literal<double>(node, "other");
      const auto found = self == nullptr ? drawn.end() : drawn.find(self->name);
      if (found == drawn.end() || divisor == nullptr || *divisor != *found->second) continue;
      *found->second = *divisor = 1.0;
    }
  }
}

/// What a module called auxiliary_loss adds trains along only: evaluation counts it 0. No other sum is
/// touched.
void forget_auxiliary_losses(Graph& graph) {
  constexpr std::string_view kLayer = "auxiliary_loss";
  for (Node& node : graph.nodes) {
    const bool marked = node.layer == kLayer || node.layer.ends_with("." + std::string(kLayer));
    if (!marked || node.op != "aten::add") continue;
    const auto alpha = std::find_if(node.arguments.begin(), node.arguments.end(),
                                    [](const auto& argument) { return argument.first == "alpha"; });
    if (alpha != node.arguments.end()) {
      alpha->second = 0.0;
    } else {
      node.arguments.emplace_back("alpha", 0.0);
    }
  }
}

}  // namespace

Graph evaluation_graph(const Graph& training) {
  Graph graph = training;
  for (Node& node : graph.nodes) {
    if (is_norm_without_statistics(node)) continue;
    for (const Rewrite& rewrite : rewrites()) {
      if (node.op != rewrite.op) continue;
      // An argument left out takes the schema's default, which for all of the table means evaluation.
      for (auto& [name, value] : node.arguments) {
        if (name == rewrite.argument) value = rewrite.evaluation;
      }
    }
  }
  keep_all_samples(graph);
  forget_auxiliary_losses(graph);
  return graph;
}

Graph with_batch_size(const Model& model, int64_t samples) {
  PW_CHECK(model.graph_for != nullptr, "a model that no SPEC names");
  Graph graph = model.graph_for(samples);
  PW_CHECK_EQ(graph.nodes.size(), model.graph.nodes.size());
  graph.name = model.graph.name;
  graph.autocast = model.graph.autocast;
  graph.device_passes = model.graph.device_passes;
  graph.fold_constants = model.graph.fold_constants;
  // What stages run is chosen once, by the sizes of a full minibatch.
  graph.together = model.graph.together;
  graph.everywhere = model.graph.everywhere;
  return graph;
}

}  // namespace pipewright
