#include "graph/node_sets.h"

#include "graph/nearest.h"

namespace pipewright {
NodeSets node_sets_from_json(JsonReader& reader, const std::string& key) {
  NodeSets sets;
  if (!reader.has(key)) return sets;
  const Json& list = reader.raw(key);
  if (!list.is_array()) reader.fail(key, "got " + described(list) + ", expected an array of arrays of names");
  for (size_t i = 0; i < list.size(); ++i) {
    const auto fail = [&](const Json& got, const char* expected) {
      fail_document(reader.where(), list_element(reader.place(key), i),
                    "got " + described(got) + ", expected " + expected);
    };
    if (!list[i].is_array()) fail(list[i], "an array of names");
    sets.emplace_back();
    for (const Json& name : list[i]) {
      if (!name.is_string()) fail(name, "the name of a node");
      sets.back().push_back(name.get<std::string>());
    }
  }
  return sets;
}

void validate_node_sets(const NodeSets& sets, const std::set<std::string>& nodes, const std::string& where,
                        const std::string& key) {
  std::set<std::string> seen;
  for (size_t i = 0; i < sets.size(); ++i) {
    if (sets[i].size() < 2) fail_document(where, list_element(key, i), "expected two nodes or more");
    for (const std::string& name : sets[i]) {
      if (nodes.count(name) == 0) {
        fail_document(where, list_element(key, i),
                      "there is no node " + in_quotes(name) + suggestion(name, {nodes.begin(), nodes.end()}));
      }
      if (!seen.insert(name).second)
        fail_document(where, list_element(key, i), in_quotes(name) + " stands there twice");
    }
  }
}

}  // namespace pipewright
