// `--changes CHANGES.json` of check, simulate and show: a run whose plan changes.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/text_table.h"
#include "optimizer/commands/options.h"
#include "optimizer/plan/plan_sequence.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

void add_changes_option(boost::program_options::options_description* options);

/// The plan of --plan and those that take over from it.
struct PlanSequence {
  std::vector<std::string> names;  ///< files
  std::vector<Plan> plans;
  std::vector<int64_t> firsts;  ///< minibatches: the first is 0

  const Plan& largest() const;  ///< the first of those with most ranks
};
/// InputError, PlanError with the file's name for a plan that does not run or is of another model's nodes.
PlanSequence read_sequence(const boost::program_options::variables_map& values, const Plan& first);

std::vector<PricedGeneration> price(const PlanSequence& sequence, int64_t minibatches, const Inputs& inputs);

/// One line a plan: from where it is in force, its shape, what a minibatch takes, and what its coming costs.
TextTable sequence_table(const std::vector<PricedGeneration>& generations);
/// "100 minibatches: 1.2 s, of which 30 ms go into 2 changes; under the first plan alone 1.9 s".
std::string sequence_text(const std::vector<PricedGeneration>& generations, double alone_seconds);

/// Both, on standard output. Returns the prices.
std::vector<PricedGeneration> print_sequence(const PlanSequence& sequence, int64_t minibatches,
                                             const Inputs& inputs, int64_t width);

/// InputError if one of the options is given: what is drawn of one plan cannot be drawn of several.
void refuse_with_changes(const boost::program_options::variables_map& values,
                         const std::vector<const char*>& others);

/// All plans one after the other on one axis of time, ranks by their numbers, minibatches by those of the
/// run. A rank's place is that in the first plan that has one for it.
Simulation play(const std::vector<PricedGeneration>& generations, const Inputs& inputs);

}  // namespace pipewright
