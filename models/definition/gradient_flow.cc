#include "models/definition/gradient_flow.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

namespace pipewright {
namespace {

/// Operators that make floating-point numbers of such, and have no derivative (that of others may be zeros).
/// Those that end with '*': all that begin so.
constexpr std::string_view kWithoutDerivative[] = {
    "detach",
    "detach_",
    "detach_copy",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_empty_strided",
    "histc",
    "linspace",
    "logspace",
    "special_airy_ai",
    "special_bessel_*",
    "special_chebyshev_*",
    "special_hermite_*",
    "special_laguerre_*",
    "special_legendre_*",
    "special_modified_bessel_*",
    "special_scaled_modified_bessel_*",
    "special_shifted_chebyshev_*",
    "special_spherical_bessel_*",
};

struct ArgumentWithoutDerivative {
  std::string_view op, argument;  ///< "" as operator: of all
};
constexpr ArgumentWithoutDerivative kArgumentsWithoutDerivative[] = {
    {"expand_as", "other"},
    {"view_as", "other"},
    {"reshape_as", "other"},
    {"type_as", "other"},
    {"to", "other"},
    {"cosine_embedding_loss", "target"},
    {"hinge_embedding_loss", "target"},
    {"", "running_mean"},
    {"", "running_var"},
};

std::string_view short_name(const Node& node) {
  const std::string_view op = node.op;
  return op.starts_with("aten::") ? op.substr(6) : op;
}

bool has_derivative(const Node& node) {
  const std::string_view op = short_name(node);
  return std::none_of(
      std::begin(kWithoutDerivative), std::end(kWithoutDerivative), [&](std::string_view name) {
        return name.ends_with('*') ? op.starts_with(name.substr(0, name.size() - 1)) : op == name;
      });
}

bool has_derivative(const Node& node, const std::string& argument) {
  return std::none_of(std::begin(kArgumentsWithoutDerivative), std::end(kArgumentsWithoutDerivative),
                      [&](const ArgumentWithoutDerivative& none) {
                        return argument == none.argument && (none.op.empty() || none.op == short_name(node));
                      });
}

/// Values that a node may have written in place are read by all the names that they had: those of one set.
class SharedNames {
 public:
  explicit SharedNames(const Graph& graph) {
    std::set<std::string> shared;
    for (const auto& set : graph.together) shared.insert(set.begin(), set.end());
    std::set<std::string> made;
    for (const Node& node : graph.nodes)
      if (shared.count(node.name)) made.insert(node.outputs.begin(), node.outputs.end());
    for (const Node& node : graph.nodes) {
      if (shared.count(node.name) == 0 || node.outputs.empty()) continue;
      std::vector<std::string> names = differentiable_reads(node);
      names.insert(names.end(), node.outputs.begin(), node.outputs.end());
      for (const std::string& name : names)
        if (made.count(name)) join(node.outputs[0], name);
    }
    for (const auto& [name, parent] : parent_) sets_[root(name)].push_back(name);
  }
  std::vector<std::string> names_of(const std::string& name) const {
    const auto found = sets_.find(root(name));
    return found == sets_.end() ? std::vector<std::string>{name} : found->second;
  }

 private:
  std::string root(std::string name) const {
    for (auto found = parent_.find(name); found != parent_.end() && found->second != name;
         found = parent_.find(name))
      name = found->second;
    return name;
  }
  void join(const std::string& a, const std::string& b) {
    parent_.emplace(a, a);
    parent_.emplace(b, b);
    parent_[root(b)] = root(a);
  }
  std::map<std::string, std::string> parent_;
  std::map<std::string, std::vector<std::string>> sets_;
};

}  // namespace

std::vector<std::string> differentiable_reads(const Node& node) {
  std::vector<std::string> names;
  if (!node.gradient || !has_derivative(node)) return names;
  for (const auto& [argument, value] : node.arguments) {
    if (!has_derivative(node, argument)) continue;
    if (const auto* one = std::get_if<TensorArgument>(&value)) names.push_back(one->name);
    if (const auto* many = std::get_if<TensorsArgument>(&value))
      std::copy_if(many->names.begin(), many->names.end(), std::back_inserter(names),
                   [](const std::string& name) { return !name.empty(); });
  }
  return names;
}

Graph with_reached_parameters(Graph graph) {
  const SharedNames shared(graph);
  std::map<std::string, const Node*> maker;
  for (const Node& node : graph.nodes)
    for (const std::string& output : node.outputs) maker[output] = &node;
  std::set<std::string> reached;
  std::vector<std::string> to_visit = {graph.outputs.at(0)};
  while (!to_visit.empty()) {
    const std::string name = to_visit.back();
    to_visit.pop_back();
    const auto value = graph.values.find(name);
    if (value != graph.values.end() && !dtype_has_gradients(value->second.dtype)) continue;
    if (!reached.insert(name).second) continue;
    for (const std::string& other : shared.names_of(name)) to_visit.push_back(other);
    if (const auto found = maker.find(name); found != maker.end())
      for (const std::string& read : differentiable_reads(*found->second)) to_visit.push_back(read);
  }
  const auto is_trained = [&](const Parameter& parameter) {
    return parameter.trainable && reached.count(parameter.name) > 0;
  };
  if (std::none_of(graph.parameters.begin(), graph.parameters.end(), is_trained)) return graph;
  for (Parameter& parameter : graph.parameters) parameter.trainable = is_trained(parameter);
  return graph;
}

}  // namespace pipewright
