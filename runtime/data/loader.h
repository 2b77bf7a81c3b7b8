// Minibatches in order, made ahead of time by background workers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"

namespace pipewright {

/// Which samples are in which minibatch: a pure function.
class Sampler {
 public:
  /// shuffle: each epoch in its own order (Fisher-Yates, keyed by seed and epoch); otherwise in data order.
  Sampler(int64_t dataset_size, int64_t batch_size, uint64_t seed, bool shuffle);
  /// Full minibatches of one epoch; samples that are left over are not used in that epoch. 0 if the set is
  /// too small.
  int64_t minibatches_per_epoch() const;
  int64_t epoch_of(int64_t minibatch) const;
  /// Indices of minibatch k, k counted over the whole run. Any thread.
  std::vector<int64_t> indices(int64_t minibatch) const;

 private:
  int64_t dataset_size_;
  int64_t batch_size_;
  uint64_t seed_;
  bool shuffle_;
  // Of two epochs: that of the run, and the one that is looked ahead to.
  struct Order {
    int64_t epoch = -1;
    std::vector<int64_t> permutation;
  };
  mutable std::mutex mutex_;  // of what follows
  mutable Order orders_[2];
};

/// What to load: the sample indices of one minibatch and the key of its visit.
struct LoadRequest {
  std::vector<int64_t> indices;
  SampleKey key;
};

/// Gives the next request, or nothing at the end. Called in order, by one thread at a time (not always the
/// same one), never after it gave nothing or threw. Must not call the Loader.
using RequestSource = std::function<std::optional<LoadRequest>()>;

/// `pinned`: tensors lie in memory from which a device takes them while the host goes on.
///
/// Serves requests in the order given, at most `ahead` minibatches made in advance (bounded queue). `fields`:
/// numbers of the fields wanted; next() returns one tensor (samples, sample shape...) per field, freshly
/// allocated. workers = 0 or ahead = 0: made in next(), no thread. An exception of a worker is rethrown by
/// the next() it belongs to; the requests after it are served as if it had not been. One of the source ends
/// the requests, after those before it. next() after the last request is a CheckError. The destructor stops
/// the workers; it waits for the sample each is at, not for requests nobody asked for. The data set is
/// borrowed. next() is called by one thread at a time.
class Loader {
 public:
  Loader(const Dataset& dataset, std::vector<size_t> fields, RequestSource requests, int64_t workers,
         int64_t ahead, bool pinned = false);
  Loader(const Dataset& dataset, std::vector<size_t> fields, std::vector<LoadRequest> requests,
         int64_t workers, int64_t ahead, bool pinned = false);
  ~Loader();
  std::vector<at::Tensor> next();

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace pipewright
