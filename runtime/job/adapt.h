// Which plan trains which minibatches of a run: the policies of --adapt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/spec.h"

namespace pipewright {

/// A plan takes over from the one before it.
struct PlannedChange {
  int64_t minibatch = 0;  ///< the first that it trains, 1 or more
  std::string file;       ///< of the plan
  Plan plan;
  std::string reason;  ///< the policy's name
};

/// A row of the table. A policy is asked once, when the job is prepared: it says what it knows beforehand.
struct AdaptPolicyRow {
  const char* name;
  std::vector<PlannedChange> (*changes)(SpecOptions& options);  ///< by rising minibatch
};
/// "none", "manual".
const std::vector<AdaptPolicyRow>& adapt_policies();

/// What the policy `adapt` (a SPEC, such as "manual:file=CHANGES.json") has planned. The plans are read, not
/// checked. InputError with the nearest name for an unknown policy, and for what cannot be read.
std::vector<PlannedChange> planned_changes(const std::string& adapt);

}  // namespace pipewright
