#include "models/exported/out_forms.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

namespace pipewright {
namespace {

bool writes_or_shares(const c10::FunctionSchema& schema) {
  const auto has_alias = [](const c10::Argument& one) { return one.alias_info() != nullptr; };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), has_alias) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), has_alias);
}

bool is_tensor(const c10::Argument& one) { return one.type()->kind() == c10::TypeKind::TensorType; }

/// Of the call's operator: its arguments are `wanted`, and it makes as many tensors as `results`.
std::optional<std::string> overload_with(const std::string& op,
                                         const std::vector<const c10::Argument*>& wanted, size_t results) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name != op) continue;
    const auto found = dispatcher.findSchema(name);
    if (!found) continue;
    const c10::FunctionSchema& schema = found->schema();
    const auto same = [](const c10::Argument& a, const c10::Argument* b) {
      return a.name() == b->name() && *a.type() == *b->type();
    };
    if (!writes_or_shares(schema) && schema.returns().size() == results &&
        std::all_of(schema.returns().begin(), schema.returns().end(), is_tensor) &&
        std::equal(schema.arguments().begin(), schema.arguments().end(), wanted.begin(), wanted.end(), same))
      return name.overload_name;
  }
  return std::nullopt;
}

}  // namespace

std::optional<PlainForm> plain_form(const Node& call) {
  const auto found = c10::Dispatcher::singleton().findSchema({call.op, call.overload});
  if (!found) return std::nullopt;
  const c10::FunctionSchema& schema = found->schema();
  PlainForm plain{call, {}};
  std::vector<const c10::Argument*> kept;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!argument.is_out()) {
      kept.push_back(&argument);
      continue;
    }
    const auto given = std::find_if(plain.call.arguments.begin(), plain.call.arguments.end(),
                                    [&](const auto& one) { return one.first == argument.name(); });
    if (given == plain.call.arguments.end()) return std::nullopt;
    const auto* tensor = std::get_if<TensorArgument>(&given->second);
    if (tensor == nullptr) return std::nullopt;
    plain.destinations.push_back(tensor->name);
    plain.call.arguments.erase(given);
  }
  const size_t results = plain.destinations.size();
  if (results == 0 || results != schema.returns().size() || results != call.outputs.size())
    return std::nullopt;
  const auto overload = overload_with(call.op, kept, results);
  if (!overload) return std::nullopt;
  plain.call.overload = *overload;
  plain.call.autocast = "off";
  return plain;
}

}  // namespace pipewright
