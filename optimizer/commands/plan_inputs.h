// What the commands that look at a plan that is there have in common.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "optimizer/commands/options.h"
#include "optimizer/price/plan_cost.h"

namespace pipewright {

/// --plan, --profile, of devices, of pricing, --wide.
void add_plan_options(boost::program_options::options_description* options);

/// Profile, devices (`devices`, if nothing else is said) and pricing, for a plan that is there.
Inputs inputs_for(const boost::program_options::variables_map& values, const Plan& plan, int64_t devices);

/// check_plan_memory() of a plan that was priced, within --memory or the topology's. Nothing without a limit.
void require_memory(const Plan& plan, const Prediction& prediction, const Inputs& inputs);

/// Of a plan that does not fit the topology's memory a sentence that says so, by how much the rank that lacks
/// most, and the next command; "" of one that fits.
std::string room_text(const Plan& plan, const Prediction& prediction, const Topology& topology);

/// Says on standard error what was written.
void write_text(const std::string& file, const std::string& text);
/// A drawing in text: each line to the last slot that fits, ">" says that it goes on.
std::string clipped(const std::string& drawing, int64_t width);
/// Of a file's name: ".svg".
std::string suffix_of(const std::string& file);

/// What the simulator needs to play a plan of a profile on its devices.
PlanCost cost_as_run(const Plan& plan, const Inputs& inputs);

}  // namespace pipewright
