// The fields of the stage behind frozen layers: what these make of samples, kept or computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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

/// Where the samples of a minibatch come from. All borrowed; any thread calls them, one at a time, but
/// `make`, which that calls that computes.
struct PrefixSources {
  std::function<LoadRequest(int64_t k)> request;
  /// Those fields of minibatch k, by name, as they travel to the stage's device.
  std::function<std::vector<at::Tensor>(int64_t k, const std::vector<std::string>& fields)> load;
  /// Makes of them what the graph reads; null: they are that.
  std::function<void(const std::vector<std::string>& fields, std::vector<at::Tensor>& loaded)> make;
  /// Weights and buffers of the whole stage, as they are.
  std::function<std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>()> state;
  std::function<void(const std::string& line)> log;  ///< for people
  /// The values are no function of the sample, whatever is measured.
  std::function<void(const std::string& reason)> impure;
};

/// What came of the samples of a prefix. The first three add up to all that were asked for.
struct PrefixFigures {
  int64_t fetched = 0;   ///< samples of minibatches whose values were all kept
  int64_t deepened = 0;  ///< samples whose values were computed from those of fewer frozen layers
  int64_t computed = 0;  ///< samples whose values were computed from the beginning
  double fetch_seconds = 0;
  double compute_seconds = 0;  ///< of both kinds

  PrefixFigures& operator+=(const PrefixFigures& other);
};

class CachedPrefix {
 public:
  /// Values that were kept before more layers were frozen: a cut of the same stage, further ahead.
  struct Shallower {
    std::shared_ptr<const PrefixCut> cut;
    CacheSpace space;
  };
  /// `space`: of the values at the cut, which has no obstacle. `shallower`: the deepest first.
  CachedPrefix(std::shared_ptr<const PrefixCut> cut, SampleCache& cache, CacheSpace space,
               PrefixSources sources, NextUses uses, std::vector<Shallower> shallower = {});

  /// What there is of minibatch k before anything is computed.
  struct Found {
    std::vector<std::byte> records;  ///< of all its samples; empty: they are not all kept
    std::vector<at::Tensor> fields;  ///< of the whole stage, or those that the rest reads beside the values
  };
  /// From any thread, between two calls of fields(): ahead of the one that takes it.
  Found look_up(int64_t k);

  /// The fields of cut.behind() for minibatch k. If all of its samples are kept nothing is loaded but what
  /// the rest of the stage reads; else the whole minibatch is computed, each sample in its place: a row of
  /// another batch may differ in its last bit. So for the same samples in the same minibatches the result is
  /// that of the uncut stage, to the bit (dtype float32).
  ///
  /// The first minibatch is computed always, and says whether keeping is worth it: its values are computed
  /// once more with half of the samples, in another order, to see that each depends on its sample alone, and
  /// fetched once to see that this takes less time than computing. If not, nothing is kept from then on.
  std::vector<at::Tensor> fields(int64_t k, Found found);
  std::vector<at::Tensor> fields(int64_t k) { return fields(k, look_up(k)); }

  /// "" while values are kept and found, else why not.
  const std::string& refused() const { return refused_; }
  const PrefixFigures& figures() const { return figures_; }

  /// In the place of the two measurements.
  std::optional<bool> worth_it;

 private:
  /// Records of all samples of the minibatch, or nothing.
  std::vector<std::byte> fetch(int64_t k, const std::vector<int64_t>& samples, const PrefixRecords& records,
                               const CacheSpace& space);
  std::vector<at::Tensor> compute(int64_t k, const std::vector<int64_t>& samples,
                                  const std::vector<at::Tensor>& fields);
  void keep(int64_t k, const std::vector<int64_t>& samples, const std::vector<at::Tensor>& values);
  std::vector<at::Tensor> first_values(int64_t k, const std::vector<int64_t>& samples,
                                       const std::vector<at::Tensor>& fields);
  void judge(int64_t k, const std::vector<int64_t>& samples, const std::vector<at::Tensor>& fields,
             const std::vector<at::Tensor>& values, double compute_seconds);
  bool keeps() const { return records_ && refused_.empty(); }

  const std::shared_ptr<const PrefixCut> cut_;
  SampleCache& cache_;
  const CacheSpace space_;
  const PrefixSources sources_;
  NextUses uses_;
  const std::vector<Shallower> shallower_;
  std::vector<std::string> other_fields_;    // of the program behind, not of the cut
  std::unique_ptr<PrefixRecords> records_;   // from the first minibatch on
  std::vector<PrefixRecords> of_shallower_;  // likewise, if values are kept
  std::string refused_;
  PrefixFigures figures_;
};

}  // namespace pipewright
