// What frozen layers make of samples, kept for the life of a run (--cache): the host's store, and what feeds
// this rank's first stage from it.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/cache_rules.h"
#include "graph/summary.h"
#include "runtime/cache/sample_cache.h"
#include "runtime/control/exchange.h"
#include "runtime/generation/training_data.h"
#include "runtime/worker/cached_prefix.h"
#include "runtime/worker/worker.h"

namespace pipewright {

class RunCache {
 public:
  struct Settings {
    const TrainingData& data;
    Exchange* exchange = nullptr;  ///< null: one rank
    std::function<void(const std::string& line)> log;
  };
  /// The first rank of a host makes the host's store and tells the others how to open it. Null for a run that
  /// keeps nothing, and where no tier can be made or opened, which is logged. `settings` borrows all.
  static std::unique_ptr<RunCache> make(const Run& run, Settings settings);

  /// A generation begins, of this model and plan, after those plans (`before`); `worker` outlives end().
  void begin(const Model& model, const Plan& plan, const std::vector<const Plan*>& before, Worker& worker);
  /// Before the worker goes.
  void end();
  /// Feeds the worker's first stage; null: that stage runs whole.
  CachedPrefix* prefix() const { return prefix_.get(); }
  /// Of all generations, this rank's part.
  CacheSummary summary() const;
  /// False once it is known that what frozen layers make is no function of the sample: found here, or heard
  /// from another rank (PrefixImpure). Both from any thread.
  bool can_keep() const { return !impure_; }
  void hear_impure() { impure_ = true; }

 private:
  RunCache(const Run& run, Settings settings, std::unique_ptr<SampleCache> cache);

  const Settings settings_;
  const std::string data_spec_;
  const CacheRules rules_;
  const std::unique_ptr<SampleCache> cache_;
  std::unique_ptr<CachedPrefix> prefix_;
  PrefixFigures earlier_;
  std::string refused_;  // under the plan in force, or the last one
  std::atomic<bool> impure_ = false;
};

}  // namespace pipewright
