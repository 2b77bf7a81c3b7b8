// Arguments of a graph's nodes in documents: {"int": 3}, {"tensor": "x"}.
#pragma once

#include "graph/graph.h"
#include "graph/json.h"

namespace pipewright {

Json argument_to_json(const Argument& argument);
/// InputError unless there is one kind of value, and it is of that kind.
Argument argument_from_json(JsonReader& reader);

}  // namespace pipewright
