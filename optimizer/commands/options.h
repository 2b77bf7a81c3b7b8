// Command-line options that several commands of pipewright-optimizer share.
#pragma once

#include <boost/program_options.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/settings.h"
#include "graph/topology.h"
#include "optimizer/plan/optimizer.h"

namespace pipewright {

/// What a planning problem is asked about.
struct Inputs {
  Profile profile;
  Topology topology;
  PlanRequest request;
  std::vector<Setting> settings;
};

/// --gpus, --topology, --levels, --bandwidths, --latency, --shared, --device-classes, --class-profile,
/// --memory.
void add_device_options(boost::program_options::options_description* options);
/// --optimizer, --optimizer-slots, --ignore-crowd, --data-workers.
void add_pricing_options(boost::program_options::options_description* options);
/// --schedule, --weights, --microbatches, --stages-per-rank, --recompute: for commands that search.
void add_run_options(boost::program_options::options_description* options);
/// --max-stages, --replicas, --pin: for commands that search.
void add_constraint_options(boost::program_options::options_description* options);

/// profile.json or PipeDream's graph.txt, told apart by what is in it.
Profile read_profile(const std::filesystem::path& file);
Plan read_plan(const boost::program_options::variables_map& values);

/// Topology from the options. `devices_if_unsaid` stands for --gpus where a plan already says how many; 0 =
/// it must be said.
Topology topology_from(const boost::program_options::variables_map& values, int64_t devices_if_unsaid,
                       std::vector<Setting>* settings);
/// --class-profile. InputError for a class that no device of the topology is of.
ClassProfiles class_profiles_from(const boost::program_options::variables_map& values,
                                  const Topology& topology, std::vector<Setting>* settings);
/// The constraints of --replicas alone.
StageConstraints replicas_from(const boost::program_options::variables_map& values,
                               std::vector<Setting>* settings);
PlanRequest request_from(const boost::program_options::variables_map& values, std::vector<Setting>* settings);

/// The required option's value; InputError if it was not given.
std::string required(const boost::program_options::variables_map& values, const std::string& name);

/// InputError unless low <= value <= high.
int64_t in_range(const boost::program_options::variables_map& values, const std::string& name, int64_t low,
                 int64_t high);

}  // namespace pipewright
