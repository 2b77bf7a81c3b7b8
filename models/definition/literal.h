// An argument of a node, by its name and kind.
#pragma once

#include <string>
#include <type_traits>
#include <variant>

#include "graph/graph.h"

namespace pipewright {

/// The argument of that name if it is given as such a value; else null.
template <typename Value, typename AnyNode>
auto literal(AnyNode& node, const std::string& name)
    -> decltype(std::get_if<Value>(&node.arguments[0].second)) {
  for (auto& [key, value] : node.arguments)
    if (key == name) return std::get_if<Value>(&value);
  return nullptr;
}

}  // namespace pipewright
