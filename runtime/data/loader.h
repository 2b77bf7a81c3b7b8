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

#include "runtime/data/data_workers.h"
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
/// same one), never after it gave nothing or threw. May wait; must not call the Loader.
using RequestSource = std::function<std::optional<LoadRequest>()>;

/// Serves requests in the order given, at most `ahead` minibatches made or being made in advance. Workers
/// share the samples of a minibatch and begin with the first that is not made, so that also one alone is made
/// by all; what comes out is the same for every number of them. `fields`: numbers of the fields wanted;
/// next() returns one tensor (samples, sample shape...) per field, nobody else's, as graphs read it, or if
/// `stored` as the set stores it, which is what a device is given (FieldsOnDevice). No workers or ahead = 0:
/// made in next(), no thread. Where samples cannot be read, the exception of the first of them is rethrown by
/// the next() of their minibatch; the requests after it are served as if it had not been. One of the source
/// ends the requests, after those before it. next() after the last request is a CheckError. The destructor
/// stops the workers; it waits for the sample each is at, not for requests nobody asked for. The data set is
/// borrowed. next() is called by one thread at a time.
///
/// Memory: tensors of `ahead` minibatches and of those that next() has handed out and somebody holds. None is
/// kept here for the next minibatch, as the allocators do that: the host's (models/memory/process_memory.h),
/// and for `pinned` memory, from which a device takes tensors while the host goes on, LibTorch's. That asks
/// the driver, which takes long, only where more is alive than ever before; its blocks are powers of two. It
/// alone knows when an upload has ended (a copy with non_blocking records it) and gives a block out again no
/// sooner, whoever has let go of the tensor.
class Loader {
 public:
  Loader(const Dataset& dataset, std::vector<size_t> fields, RequestSource requests, DataWorkers workers,
         int64_t ahead, bool pinned = false, bool stored = false);
  Loader(const Dataset& dataset, std::vector<size_t> fields, std::vector<LoadRequest> requests,
         DataWorkers workers, int64_t ahead, bool pinned = false, bool stored = false);
  ~Loader();
  std::vector<at::Tensor> next();
  /// Would next() return, or throw, at once? Without workers it has still to make what it returns.
  bool is_ready();

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace pipewright
