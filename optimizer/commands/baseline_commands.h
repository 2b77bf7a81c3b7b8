// `plan --objective`: this project's own problem, or those of other planners (optimizer/baselines/).
#pragma once

#include <boost/program_options.hpp>

namespace pipewright {

/// --objective, and what only other planners' problems ask for: --cpus, --staleness-weight.
void add_baseline_options(boost::program_options::options_description* options);

/// True if --objective is another planner's problem: then plan_baseline() runs the command. InputError
/// with the nearest name for one that is not known, and for an option that only other planners' problems have
/// where none is asked for.
bool asks_baseline(const boost::program_options::variables_map& values);

/// Searches, prints (tables, or JSON with --json), and writes what --output says: for a profile a plan, for
/// another planner's file the JSON. InputError for a file that is not of that planner, or options that its
/// problem does not have.
void plan_baseline(const boost::program_options::variables_map& values);

}  // namespace pipewright
