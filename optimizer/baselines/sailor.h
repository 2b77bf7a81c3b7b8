// The runs that Sailor's authors measured to validate their simulator (Strati et al., "Sailor: Automating
// Distributed Training over Dynamic, Heterogeneous, and Geo-distributed Clusters", SOSP 2025;
// github.com/eth-easl/sailor, MIT): plans with the seconds of an iteration, and what predicts them. In a
// folder:
//
//   plans/CLUSTER[/MODEL]/N*/plan_config_*.json   "real" seconds of an iteration; stages, replicas, batches
//   profiles.json    model, GPU, samples of a microbatch, tensor-parallel GPUs, layer: forward, backward,
//   update
//                    seconds
//   llm_info.json    model, tensor-parallel GPUs, layer: bytes of parameters on a GPU, of activations of a
//                    sample
//   network/multizone_bandwidths_het.json
//                    zone, GPU, GPUs, zone, GPU, GPUs: GB/s of a message, a polynomial in log2 of its MiB
//
// What becomes of them: a replica (the tensor-parallel GPUs of a node) is a rank. Its times are the sums over
// its layers. A message has the activations of a microbatch once, and goes as fast as the curve from node to
// node says. The exchange of gradients is the all-reduce of optimizer/cost/formulas.h with the bytes of all
// GPUs of the replica, as fast as the curve of the slowest two replicas is for one of its pieces. Measured
// times of parts (red_grads) are not used to predict: they have the waiting for slower replicas in them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "graph/json.h"
#include "optimizer/baselines/published_runs.h"

namespace pipewright {

/// profiles.json, llm_info.json and network/multizone_bandwidths_het.json.
struct SailorTables {
  Json profiles, layers, network;
};

struct SailorRun {
  PublishedRun run;
  double exchange_seconds = 0;  ///< measured, with the waiting for others
  int64_t memory_bytes = 0;     ///< measured, of the fullest GPU
};

/// A plan and what it took; its run has no name yet. Stages take the layers in order, as many as their lists
/// are long (some lists of the files name layer 29 in the place of 19). A plan of another number of layers
/// than its model has is unusable, and so is one of several stages with fewer microbatches than these:
/// nothing is pipelined. InputError, with file and place, for what does not parse, and for a group, a time or
/// a link that the tables do not have.
SailorRun parse_sailor_run(const std::string& text, const std::string& where, const std::string& group,
                           const SailorTables& tables);

/// Where several runs have the same measurements to the last digit, all but one are copies, and unusable.
/// That one is the only one of them with replicas if its measured exchange takes a percent of the iteration
/// or more, since a plan without replicas has nothing to exchange; otherwise it is unknown, and none is
/// usable.
void mark_copies(std::vector<SailorRun>* runs);

/// All runs of the folder, by name of group and run, with why some are not usable. InputError as above, or
/// for a folder that is not like this.
std::vector<PublishedRun> read_sailor(const std::filesystem::path& folder);

}  // namespace pipewright
