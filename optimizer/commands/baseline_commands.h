// `plan` with the questions of other planners, from their own input files.
#pragma once

#include <boost/program_options.hpp>

namespace pipewright {

/// --cpus.
void add_baseline_options(boost::program_options::options_description* options);

/// True if --objective is one of baselines(): then plan_baseline answers the command.
bool asks_baseline(const boost::program_options::variables_map& values);

/// Searches, prints (tables, or JSON with --json), and writes what --output says: for a profile a plan, for
/// another planner's file the JSON. InputError for a file that is not of that planner, or options that its
/// question does not have.
void plan_baseline(const boost::program_options::variables_map& values);

}  // namespace pipewright
