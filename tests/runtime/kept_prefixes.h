// Frozen layers whose values a test's ranks keep, of minibatches that come again.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/definition/frozen.h"
#include "runtime/worker/frozen_prefix.h"
#include "runtime/worker/prefix_feed.h"
#include "runtime/worker/stage_loaders.h"
#include "tests/runtime/pipelines.h"

namespace pipewright::testing {

/// The first `period` of some minibatches, as a data set: the rows of one after those of the other.
class RowsOfMinibatches : public Dataset {
 public:
  RowsOfMinibatches(const Graph& graph, const std::vector<MinibatchFields>& minibatches, int64_t period)
      : minibatches_(minibatches), period_(period), batch_(graph.values.at(graph.inputs.front()).shape[0]) {
    for (const std::string& name : graph.inputs) {
      TensorType type = graph.values.at(name);
      type.shape.erase(type.shape.begin());
      fields_.push_back({name, type});
    }
  }
  int64_t batch() const { return batch_; }
  int64_t period() const { return period_; }
  int64_t size() const override { return period_ * batch_; }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return 1; }
  bool in_order() const override { return true; }
  void read(int64_t index, size_t field, SampleKey, void* into) const override {
    const at::Tensor row = minibatches_[static_cast<size_t>(index / batch_)]
                               .at(fields_[field].name)[index % batch_]
                               .contiguous();
    std::memcpy(into, row.const_data_ptr(), row.nbytes());
  }

 private:
  const std::vector<MinibatchFields>& minibatches_;
  const int64_t period_, batch_;
  std::vector<DataField> fields_;
};

/// The store of one host, which all ranks of a test share.
class KeptPrefixes {
 public:
  KeptPrefixes(const Graph& graph, const std::vector<MinibatchFields>& minibatches, int64_t period,
               int64_t memory_bytes)
      : data_(graph, minibatches, period) {
    CacheRules rules;
    rules.kind = CacheKind::kMemory;
    rules.memory_bytes = memory_bytes;
    std::vector<std::string> remarks;
    cache_ = SampleCache::make(rules, "unused", remarks);
  }

  /// Null where the worker does not have frozen layers in the first stage.
  std::unique_ptr<CachedPrefix> cut(const Model& model, const Plan& plan,
                                    const std::vector<const Plan*>& before, Worker& worker) {
    const auto request = [this](int64_t k) {
      LoadRequest request;
      for (int64_t i = 0; i < data_.batch(); ++i)
        request.indices.push_back(k % data_.period() * data_.batch() + i);
      return request;
    };
    return cache_frozen_prefix(model, plan, before, worker,
                               {data_, "rows", "float32", /*measures=*/false, request, data_.period(),
                                *cache_, [](const std::string&) {}, [](const std::string&) {}});
  }

  /// Trains the span, its first stage fed by `prefix`, if there is one.
  static void train(Worker& worker, CachedPrefix* prefix, const Span& span, WorkerHooks hooks) {
    std::optional<PrefixFeed> feed;
    if (prefix) {
      feed.emplace(*prefix, minibatches_of(worker.stage(), worker.stage().turns(), worker.open(span)));
      hooks.fields = [&feed, whole = hooks.fields](int64_t stage, int64_t k) {
        if (stage != 0) return whole(stage, k);
        feed->await(k);
        return feed->fields(k);
      };
    }
    worker.train(span, hooks);
  }

  void add(const CachedPrefix* prefix) {
    const std::lock_guard lock(mutex_);
    if (prefix) figures_ += prefix->figures();
  }
  const PrefixFigures& figures() const { return figures_; }

 private:
  const RowsOfMinibatches data_;
  std::unique_ptr<SampleCache> cache_;
  std::mutex mutex_;
  PrefixFigures figures_;
};

}  // namespace pipewright::testing
