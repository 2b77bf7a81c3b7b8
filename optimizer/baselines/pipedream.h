// PipeDream's problem (Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training",
// SOSP 2019), as its published optimizer (optimizer/optimizer_graph_hierarchical.py) computes it with
// activation traffic costed, oddities included, so that its numbers come out. Of C seconds of a stage's
// nodes, forward and backward, and their P bytes of parameters, on m devices:
//
//   stage(C, P, m, B)   ( C + 4 (m-1)/m P / B ) / m
//   first stage         stage(C, P, m, B)                     it pays for no cut
//   later stages        max( stage(C, P, m, B), 2 in / (B m), 2 out / (B m) )         the last has no out
//
// The slowest stage counts. There is no latency and no update, and links carry one direction at a time.
//
// On two levels, n1 devices at B1 in each of n2 servers at B2, all of them are used, and a server's best
// pipeline is a device of the level above: with its period A on n1 devices at B1, as above, and P of all its
// stages, a run of stages on m servers, alike in each, takes
//
//   first run           stage(A, P, m, B2 n1)                 its exchange is divided by a server's devices
//   later runs          max( stage(A, P, m, B2), 2 in / (B2 m), 2 out / (B2 m) )
//
// and the first stage of each run pays for no cut inside its server.
//
// Cuts are those of the original's walk: from the first source, always a reader of something that is there,
// with all that it still needs; so what does not hang on that source joins its first reader. Nodes called
// "__getitem__" that nobody reads do not exist. A cut is taken for the bytes of pipedream_cut_bytes().
//
// The search is exact. The original's rule of memory is left out: it let data parallelism of VGG-16 pass with
// 1 GB.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/cost/dataflow.h"

namespace pipewright {

struct PipeDreamStage {
  std::vector<int> nodes;      ///< of the profile, ascending
  std::vector<int64_t> ranks;  ///< device r of the topology is rank r
};

struct PipeDreamPlan {
  std::vector<PipeDreamStage> stages;
  double seconds = 0;   ///< of a minibatch
  int64_t devices = 0;  ///< that it uses
  int64_t cuts = 0;     ///< the empty set and all nodes included
};

/// The plan of least seconds; on one level of those within a part in 10^9 one on fewest devices. No cut
/// separates what has to be in one stage. InputError unless the topology is one or two levels of separate
/// links with equal devices, and for more cuts or devices than the table of the search has room for.
PipeDreamPlan search_pipedream(const Profile& profile, const Topology& topology);

/// What the original takes the cut after `done` (a down-set) for; 0 for the empty and the full set. A state
/// of its walk is an antichain, enlarged by every ancestor p of an element x that still has a reader other
/// than x and x's ancestors. Each x is looked at alone: where the antichain is wide, a fork that all branches
/// have read already counts again.
int64_t pipedream_cut_bytes(const Dataflow& flow, const NodeSet& done);

}  // namespace pipewright
