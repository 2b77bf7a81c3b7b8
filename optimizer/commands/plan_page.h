// A plan as a page for people, and what pages of several plans have of each.
#pragma once

#include <string>

#include "graph/plan.h"
#include "optimizer/commands/options.h"
#include "pages/page.h"

namespace pipewright {

/// The stages with what crosses the cuts, what each takes and keeps, the timeline of its first minibatches,
/// and what the plan would take with a cut moved. The plan has a prediction by `inputs`.
void add_plan(Page* page, const Plan& plan, const Inputs& inputs);

/// The same on a page of its own, under `words`, a line each; with the settings of the problem, if `inputs`
/// has any. `file`: where the plan is, for the command that trains with it; "": nowhere.
std::string plan_page(const Plan& plan, const Inputs& inputs, const std::string& words,
                      const std::string& file);

}  // namespace pipewright
