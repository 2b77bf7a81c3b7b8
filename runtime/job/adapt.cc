#include "runtime/job/adapt.h"

#include "graph/document.h"
#include "graph/nearest.h"
#include "graph/plan_changes.h"

namespace pipewright {
namespace {

std::vector<PlannedChange> nothing(SpecOptions& options) {
  options.finish();
  return {};
}

std::vector<PlannedChange> from_file(SpecOptions& options) {
  const std::string file = options.string("file", "");
  options.finish();
  if (file.empty()) options.fail("file", "missing", "give --adapt manual:file=CHANGES.json");
  std::vector<PlannedChange> changes;
  for (const PlanChange& change : read_plan_changes(file))
    changes.push_back({change.minibatch, change.plan, read_document<Plan>(change.plan), "manual"});
  return changes;
}

}  // namespace

const std::vector<AdaptPolicyRow>& adapt_policies() {
  static const std::vector<AdaptPolicyRow> rows = {{"none", nothing}, {"manual", from_file}};
  return rows;
}

std::vector<PlannedChange> planned_changes(const std::string& adapt) {
  SpecOptions options(parse_spec(adapt, "adapt"));
  std::vector<std::string> names;
  for (const AdaptPolicyRow& row : adapt_policies()) {
    if (options.spec().name == row.name) return row.changes(options);
    names.push_back(row.name);
  }
  throw InputError("adapt: there is no policy '" + options.spec().name + "'" +
                   suggestion(options.spec().name, names));
}

}  // namespace pipewright
