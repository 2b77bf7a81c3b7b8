// A worker whose first stage trains behind its frozen layers, fed from a cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "models/definition/model.h"
#include "runtime/cache/sample_cache.h"
#include "runtime/data/dataset.h"
#include "runtime/data/loader.h"
#include "runtime/worker/cached_prefix.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// What a run's frozen layers read, and where what they make is kept. All borrowed.
struct PrefixInputs {
  const Dataset& data;
  std::string data_spec;
  std::string dtype;     ///< that float32 values are kept as
  bool measures = true;  ///< CacheRules::measures
  std::function<LoadRequest(int64_t k)> request;
  int64_t minibatches_per_epoch = 1;
  SampleCache& cache;
  std::function<void(const std::string& line)> log;
  std::function<void(const std::string& reason)> impure;  ///< as that of PrefixSources
};

/// Why nothing is kept under a plan whose first stage has `split`: its replicas see a part of each minibatch.
inline constexpr const char* kFirstStageSplits = "the replicas of the first stage split each minibatch";

/// Where the frozen layers end in the first stage of `plan`: nodes [0, end) of the graph that are in that
/// stage. 0: none of its layers is frozen. Frozen layers behind the first stage are computed there.
size_t end_of_frozen_prefix(const Graph& graph, const Plan& plan);

/// Cuts the worker's first stage behind its frozen layers (StageReplica::run_behind) and returns what feeds
/// it, which lives no longer than the worker. Null where the worker does not have the first stage, nothing of
/// it is frozen, its replicas split minibatches, or what leaves the frozen layers cannot be kept, which is
/// logged. `model` (frozen_model) and `plan` are the worker's; `before`: plans that were in force before, the
/// last one last: what was kept under them need not be computed from the beginning.
std::unique_ptr<CachedPrefix> cache_frozen_prefix(const Model& model, const Plan& plan,
                                                  const std::vector<const Plan*>& before, Worker& worker,
                                                  const PrefixInputs& inputs);

}  // namespace pipewright
