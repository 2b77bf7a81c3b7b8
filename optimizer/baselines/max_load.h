// Max-load placement, the problem of dnn-partitioning (Tarnawski et al., "Efficient Algorithms for Device
// Placement of DNN Graph Operators", NeurIPS 2020): a chain of stages without replicas, each on an
// accelerator or on a CPU; the largest load counts.
//
//   accelerator   seconds of its nodes, forward and backward, and of every value that it sends or receives,
//                 once each; its nodes must fit its memory
//   CPU     seconds of its nodes there; values cost it nothing
//
// A value goes straight to its readers, wherever they are: a stage between pays nothing for it. So an
// accelerator pays for a value if it holds some, but not all, of those who make or read it.
//
// The search: for a load, the fewest accelerators with which each down-set runs, by the number of CPUs used.
// A step from one down-set to another is looked at only if the devices that are left could do the rest, which
// is one short stretch of the list in the order of their seconds. The load goes down to what each plan found
// really takes, until nothing smaller is possible.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile.h"
#include "graph/topology.h"

namespace pipewright {

struct MaxLoadNode {
  std::string name;
  double accelerator_seconds = 0;
  double cpu_seconds = 0;
  double bytes = 0;         ///< on an accelerator
  double send_seconds = 0;  ///< of its output, paid by an accelerator that makes it or reads it
  bool accelerator = true;  ///< may run there
  bool backward = false;    ///< follows its class; the cuts are those of the forward nodes
  int64_t color = 0;        ///< nodes of one class stay together
};

struct MaxLoadProblem {
  std::vector<MaxLoadNode> nodes;
  std::vector<std::pair<int, int>> edges;  ///< from, to; no cycle
  int64_t accelerators = 1;
  int64_t processors = 0;
  double memory_bytes = std::numeric_limits<double>::infinity();
};

struct MaxLoadStage {
  std::vector<int> nodes;  ///< ascending
  bool processor = false;
  double load_seconds = 0;
};

struct MaxLoadPlan {
  std::vector<MaxLoadStage> stages;  ///< in the order in which the forward pass goes through them
  double load_seconds = 0;
  double lower_bound_seconds = 0;  ///< no plan has a smaller load
  int64_t down_sets = 0;           ///< that were searched
};

/// The best plan, proven to a part in 1e9 if there are at most a million down-sets. Nothing if none fits.
std::optional<MaxLoadPlan> search_max_load(const MaxLoadProblem& problem);

/// Load of one stage, by direct sums over nodes and edges; infinite where it must not be on an accelerator.
double stage_load_seconds(const MaxLoadProblem& problem, const MaxLoadStage& stage);

/// A profile's nodes and transfers as such a problem: `message` seconds and bandwidth of the topology, a
/// value's both ways, no CPUs (a profile knows one kind of device), memory the node's parameters, buffers and
/// what it saves.
MaxLoadProblem max_load_problem(const Profile& profile, const Topology& topology);

}  // namespace pipewright
