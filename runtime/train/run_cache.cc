#include "runtime/train/run_cache.h"

#include <utility>
#include <vector>

#include "runtime/checkpoint/host_ring.h"
#include "runtime/worker/frozen_prefix.h"

namespace pipewright {
namespace {

std::unique_ptr<SampleCache> host_cache(const Run& run, const RunCache::Settings& settings,
                                        std::vector<std::string>& remarks) {
  const auto made = [&] { return SampleCache::make(cache_rules(run.cache), run.output, remarks); };
  if (!settings.exchange) return made();
  Exchange& exchange = *settings.exchange;
  const HostRing hosts(exchange.said_by_all(Topic::kHost));
  const int64_t first = hosts.first_of(hosts.host_of(exchange.rank()));
  if (first != exchange.rank()) return SampleCache::open(exchange.said_by(first, Topic::kCache), remarks);
  auto cache = made();
  exchange.say(Topic::kCache, cache ? cache->address() : "");
  return cache;
}

}  // namespace

std::unique_ptr<RunCache> RunCache::make(const Run& run, Settings settings) {
  if (cache_rules(run.cache).kind == CacheKind::kNone) return nullptr;
  std::vector<std::string> remarks;
  auto cache = host_cache(run, settings, remarks);
  for (const std::string& remark : remarks) settings.log("cache: " + remark);
  if (!cache) return nullptr;
  return std::unique_ptr<RunCache>(new RunCache(run, std::move(settings), std::move(cache)));
}

RunCache::RunCache(const Run& run, Settings settings, std::unique_ptr<SampleCache> cache)
    : settings_(std::move(settings)),
      data_spec_(run.data),
      rules_(cache_rules(run.cache)),
      cache_(std::move(cache)) {}

void RunCache::begin(const Model& model, const Plan& plan, const std::vector<const Plan*>& before,
                     Worker& worker) {
  const TrainingData& data = settings_.data;
  refused_.clear();
  const bool first = worker.stage().stage() == 0;
  if (first && plan.frozen_layers > 0 && plan.stages.front().splits()) refused_ = kFirstStageSplits;
  prefix_ = cache_frozen_prefix(
      model, plan, before, worker,
      {data.dataset(), data_spec_, rules_.dtype, rules_.measures,
       [&data](int64_t k) { return data.request(k); }, data.length().minibatches_per_epoch, *cache_,
       [this](const std::string& line) { settings_.log(line); },
       [this](const std::string& reason) {
         impure_ = true;
         refused_ = reason;
       }});
}

void RunCache::end() {
  if (!prefix_) return;
  earlier_ += prefix_->figures();
  refused_ = prefix_->refused();
  prefix_.reset();
}

CacheSummary RunCache::summary() const {
  PrefixFigures figures = earlier_;
  if (prefix_) figures += prefix_->figures();
  const CacheStatistics statistics = cache_->statistics();
  CacheSummary summary;
  summary.fetched = figures.fetched;
  summary.deepened = figures.deepened;
  summary.computed = figures.computed;
  summary.evicted = statistics.evictions;
  summary.damaged = statistics.damaged;
  summary.fetch_seconds = figures.fetch_seconds;
  summary.compute_seconds = figures.compute_seconds;
  summary.memory_bytes = statistics.memory_bytes;
  summary.disk_bytes = statistics.disk_bytes;
  summary.refused = prefix_ ? prefix_->refused() : refused_;
  return summary;
}

}  // namespace pipewright
