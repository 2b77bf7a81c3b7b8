// The fields of the stage behind frozen layers: what these make of samples, kept or computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cache/sample_cache.h"
#include "runtime/data/loader.h"
#include "runtime/stage/prefix_cut.h"
#include "runtime/worker/prefix_records.h"

namespace pipewright {

/// When a run reads a sample again.
class NextUses {
 public:
  /// `request(k)`: what minibatch k of the run consists of; `samples` of the set.
  NextUses(std::function<LoadRequest(int64_t)> request, int64_t minibatches_per_epoch, int64_t samples);
  /// After minibatch k: the minibatch of the next epoch that has it, or the one behind that epoch if none
  /// does.
  CacheUse after(int64_t k, int64_t sample);

 private:
  std::function<LoadRequest(int64_t)> request_;
  int64_t minibatches_per_epoch_;
  int64_t epoch_ = -1;
  std::vector<int64_t> next_;  // by sample, in that epoch
};

/// Where the samples of a minibatch come from. All borrowed, and used in the order of the stage's forwards.
struct PrefixSources {
  std::function<LoadRequest(int64_t k)> request;
  /// All fields of the whole stage; called for minibatches that are computed alone.
  std::function<std::vector<at::Tensor>(int64_t k)> load;
  /// By name, those that the program behind the cut reads beside the values; called for the others.
  std::function<std::vector<at::Tensor>(int64_t k, const std::vector<std::string>& fields)> load_some;
  /// Weights and buffers of the whole stage, as they are.
  std::function<std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>()> state;
  std::function<void(const std::string& line)> log;  ///< for people
};

class CachedPrefix {
 public:
  /// `space`: of the values at the cut. `shallower`, if given: of those that were kept before more layers
  /// were frozen; both cuts are of one stage.
  struct Shallower {
    std::shared_ptr<const PrefixCut> cut;
    CacheSpace space;
    std::shared_ptr<const PrefixRecords> records;
  };
  CachedPrefix(std::shared_ptr<const PrefixCut> cut, SampleCache& cache, CacheSpace space,
               PrefixSources sources, NextUses uses, std::optional<Shallower> shallower = {});

  /// The fields of cut.behind() for minibatch k. If all of its samples are kept nothing is loaded but what
  /// the rest of the stage reads; else the whole minibatch is computed, each sample in its place: a row of
  /// another batch may differ in its last bit. So for the same samples in the same minibatches the result is
  /// that of the uncut stage, to the bit (dtype float32).
  ///
  /// The first minibatch is computed always, and says whether keeping is worth it: its values are computed
  /// once more with half of the samples, in another order, to see that each depends on its sample alone, and
  /// fetched once to see that this takes less time than computing. If not, nothing is kept from then on.
  std::vector<at::Tensor> fields(int64_t k);

  /// "" while values are kept and found, else why not.
  const std::string& refused() const { return refused_; }
  /// To be the `shallower` of a longer prefix; nothing before the first fields().
  std::optional<Shallower> kept() const;

  /// For tests: in the place of the two measurements.
  std::optional<bool> worth_it;

 private:
  std::optional<std::vector<at::Tensor>> fetch(int64_t k, const std::vector<int64_t>& samples,
                                               const PrefixRecords& records, const CacheSpace& space);
  std::vector<at::Tensor> compute(int64_t k, const std::vector<int64_t>& samples,
                                  const std::vector<at::Tensor>& fields);
  void keep(int64_t k, const std::vector<int64_t>& samples, const std::vector<at::Tensor>& values);
  void judge(int64_t k, const std::vector<int64_t>& samples, const std::vector<at::Tensor>& fields,
             const std::vector<at::Tensor>& values, double compute_seconds);

  const std::shared_ptr<const PrefixCut> cut_;
  SampleCache& cache_;
  const CacheSpace space_;
  const PrefixSources sources_;
  NextUses uses_;
  const std::optional<Shallower> shallower_;
  std::vector<std::string> other_fields_;  // of the program behind, not of the cut
  std::shared_ptr<const PrefixRecords> records_;
  std::string refused_;
};

}  // namespace pipewright
