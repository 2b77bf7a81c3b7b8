#include "graph/sync_rules.h"

#include "graph/error.h"
#include "graph/nearest.h"

namespace pipewright {

const std::vector<SyncFacts>& sync_rules() {
  static const std::vector<SyncFacts> rows = {
      {SyncKind::kAllReduce, "all-reduce", true, "gradients are summed over the replicas at every update"},
      {SyncKind::kNone, "none", false,
       "every pipeline trains by itself; all are averaged when the pipeline drains"},
  };
  return rows;
}

std::vector<std::string> sync_names() {
  std::vector<std::string> names;
  for (const SyncFacts& row : sync_rules()) names.emplace_back(row.name);
  return names;
}

const SyncFacts& sync_facts(const std::string& name) {
  for (const SyncFacts& row : sync_rules())
    if (name == row.name) return row;
  throw InputError("sync '" + name + "' is not known" + suggestion(name, sync_names()));
}

}  // namespace pipewright
