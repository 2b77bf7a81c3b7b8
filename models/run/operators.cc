#include "models/run/operators.h"

#include <ATen/core/enum_tag.h>

#include <vector>

#include "graph/error.h"
#include "graph/nearest.h"
#include "graph/printable.h"
#include "models/definition/literal.h"
#include "models/run/allowed_operators.h"

namespace pipewright {

std::string label_of(const Node& node) {
  const std::string op = node.overload.empty() ? node.op : node.op + "." + node.overload;
  return printable("node '" + node.name + "' (" + (node.layer.empty() ? "" : node.layer + ", ") + op + ")");
}

c10::OperatorHandle find_operator(const Node& node) {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (auto found = dispatcher.findSchema({node.op, node.overload})) {
    if (const std::string why = why_not_allowed(found->schema()); !why.empty())
      throw InputError(
          label_of(node) + ": a graph may not call this operator: " + why,
          "A file from elsewhere could do harm with it. Write the model without it and export again.");
    return *found;
  }
  std::vector<std::string> overloads;
  std::vector<std::string> names;
  for (const auto& known : dispatcher.getAllOpNames()) {
    if (known.name == node.op) overloads.push_back(known.overload_name);
    names.push_back(known.name);
  }
  if (!overloads.empty())
    throw InputError(label_of(node) + ": operator '" + node.op + "' has no overload '" + node.overload + "'" +
                     suggestion(node.overload, overloads));
  const std::string near = nearest(node.op, names);
  throw InputError(
      label_of(node) + ": this LibTorch has no operator '" + node.op + "'" +
          (near.empty() ? "" : "; did you mean '" + near + "'?"),
      node.op.starts_with("aten::")
          ? ""
          : "Operators of other libraries or of Python cannot run here: write the model without it.");
}

bool draws_numbers(const Node& node, const c10::OperatorHandle& op) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (const double* probability = literal<double>(node, "p");
      node.op == "aten::bernoulli_" && probability && *probability == 1)
    return false;
  for (const char* name : {"train", "training"})
    if (const bool* train = literal<bool>(node, name); train && !*train) return false;
  if (node.op == "aten::scaled_dot_product_attention") {
    const double* probability = literal<double>(node, "dropout_p");
    const int64_t* integer = literal<int64_t>(node, "dropout_p");
    return (probability && *probability > 0) || (integer && *integer > 0);
  }
  return true;
}

bool writes_argument(const Node& node, const c10::Argument& argument) {
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return true;
  if (argument.name() != "running_mean" && argument.name() != "running_var") return false;
  for (const char* name : {"training", "use_input_stats"})
    if (const bool* trains = literal<bool>(node, name); trains && !*trains) return false;
  return true;
}

}  // namespace pipewright
