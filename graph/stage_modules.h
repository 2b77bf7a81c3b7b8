// Where a plan cuts, as programs say it that cut a model at its modules. Independent implementation from the
// formats' descriptions (docs/formats.md).
//
// torchtitan    `parallelism.module_fqns_per_model_part`: the names of the modules of each stage. What is no
//               list is kept or dropped whole (torchtitan/distributed/pipeline_parallel.py,
//               pytorch/torchtitan).
// DeepSpeed     `parts` of a PipelineModule: stage s has the layers [parts[s], parts[s + 1]) of the list that
//               it was made with (deepspeed/runtime/pipe/module.py, deepspeedai/DeepSpeed).
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"

namespace pipewright {

/// By stage, the modules of the profile that its nodes are of, in the profile's order: the entries of lists
/// (`layers.3`, whatever is in them) and the modules beside the lists. What a model computes between its
/// modules, and its loss, is of none. PlanError if a module is in two stages, a stage has none, or a node of
/// the profile is in no stage.
std::vector<std::vector<std::string>> modules_of_stages(const Plan& plan, const Profile& profile);

/// [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]. PlanError as modules_of_stages() and
/// synchronous_replicas(), and for parameters that are tied across stages, and modules below others that are
/// no list.
std::string torchtitan_modules_text(const Plan& plan, const Profile& profile);

/// {"layers": ["0", "1", "2"], "parts": [0, 2, 3]}, with the names of the layers for whoever compares.
/// PlanError as modules_of_stages() and synchronous_replicas(), and unless each rank has one stage, which
/// runs by 1f1b-flush and whose modules follow those of the stage before.
std::string deepspeed_partition_text(const Plan& plan, const Profile& profile);

}  // namespace pipewright
