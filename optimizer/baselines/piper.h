// Piper's problem (Tarnawski et al., "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS
// 2021): a chain of stages, each with d data-parallel copies of t tensor-parallel devices, and for each node
// one of the ways to run it that its profile lists for t devices (with or without recomputing activations).
//
//   seconds of a sample   ( sum of time + 2 (sum of bytes + sync over edges that leave or enter) / B ) / d
//                         + 4 (d-1)/d sum of parameter bytes / (N B)        N samples make a batch
//   memory of a device    sum of a y + b      y = ceil(sum of d over this and all later stages / d)
//
// The slowest stage counts; d divides N; the sum of d over all stages is at most N. Compute and transfers add
// up.
//
// The search: for a time, each cut keeps the pairs (devices, sum of d) of what is behind it that no other
// pair beats. Which nodes recompute is a knapsack.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile.h"

namespace pipewright {

struct PiperOption {
  std::string name;
  double seconds = 0;                     ///< of a sample, forward and backward
  double parameter_bytes = 0;             ///< on each device
  double memory_each_bytes = 0;           ///< a: for each sample under way
  double memory_fixed_bytes = 0;          ///< b
  std::map<int, double> sync_from_bytes;  ///< by node that an edge comes from
  std::map<int, double> sync_to_bytes;    ///< by node that an edge goes to
};

struct PiperNode {
  std::string name;
  std::map<int64_t, std::vector<PiperOption>> options;  ///< by tensor-parallel devices; one or two each
};

struct PiperEdge {
  int from = 0;
  int to = 0;
  double bytes = 0;
};

struct PiperProblem {
  std::vector<PiperNode> nodes;
  std::vector<PiperEdge> edges;  ///< no cycle, none twice
  int64_t devices = 1;
  int64_t samples_per_batch = 1;
  double memory_bytes = 0;
  double bandwidth_bytes_per_second = 0;
};

struct PiperStage {
  std::vector<int> nodes;  ///< ascending
  int64_t data_degree = 1;
  int64_t tensor_degree = 1;
  std::vector<int> options;  ///< by place in `nodes`
  double seconds = 0;
  double memory_bytes = 0;
};

struct PiperPlan {
  std::vector<PiperStage> stages;
  double seconds = 0;              ///< of a sample, in the slowest stage
  double lower_bound_seconds = 0;  ///< no plan is faster; 0: there are more cuts than were searched
  int64_t devices() const;
};

/// The best plan over all chains of cuts, if there are at most 3000; else over those along a few orders.
/// Which nodes recompute is chosen by seconds for a byte, as Piper does, and then put right where less would
/// do; the bound lets parts of nodes recompute. Nothing if no plan fits.
std::optional<PiperPlan> search_piper(const PiperProblem& problem);

/// Seconds of a plan by direct sums; infinite where memory, degrees or the order of the stages are wrong.
double piper_seconds(const PiperProblem& problem, const PiperPlan& plan);

/// Piper's input file (github.com/msr-fiddle/piper, README "Input format"). InputError with file and place.
PiperProblem parse_piper(const std::string& text, const std::string& where);

/// As a profile, of the first way to run each node on one device: all time is forward time, as the file does
/// not part it; what is sent, parameters, and memory for each sample as what is saved.
Profile piper_profile(const std::string& text, const std::string& where);

bool looks_like_piper(const std::string& text);

}  // namespace pipewright
