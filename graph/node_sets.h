// Sets of nodes that one stage must hold, as graphs and profiles carry them.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/json.h"

namespace pipewright {

using NodeSets = std::vector<std::vector<std::string>>;

/// The array of arrays of names under `key`; none if the key is not there.
NodeSets node_sets_from_json(JsonReader& reader, const std::string& key);

/// InputError at `key` unless each set has two names or more, all of `nodes`, and no name stands there twice.
void validate_node_sets(const NodeSets& sets, const std::set<std::string>& nodes, const std::string& where,
                        const std::string& key);

}  // namespace pipewright
