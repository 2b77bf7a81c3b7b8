#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/error.h"
#include "graph/random.h"
#include "runtime/data/loader.h"

namespace pipewright {
namespace {

std::vector<int64_t> shuffled(int64_t size, uint64_t seed, int64_t epoch) {
  constexpr uint64_t kPurpose = 0x5a4d504c;  // keeps this stream apart from those of the data sets
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  KeyedRandom random{kPurpose, seed, static_cast<uint64_t>(epoch)};
  for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

}  // namespace

Sampler::Sampler(int64_t dataset_size, int64_t batch_size, uint64_t seed, bool shuffle)
    : dataset_size_(dataset_size), batch_size_(batch_size), seed_(seed), shuffle_(shuffle) {
  PW_CHECK_LE(0, dataset_size);
  PW_CHECK_LT(0, batch_size);
}

int64_t Sampler::minibatches_per_epoch() const { return dataset_size_ / batch_size_; }

int64_t Sampler::epoch_of(int64_t minibatch) const {
  PW_CHECK_LE(0, minibatch);
  PW_CHECK(minibatches_per_epoch() > 0, dataset_size_ << " samples make no minibatch of " << batch_size_);
  return minibatch / minibatches_per_epoch();
}

std::vector<int64_t> Sampler::indices(int64_t minibatch) const {
  const int64_t epoch = epoch_of(minibatch);
  const int64_t first = minibatch % minibatches_per_epoch() * batch_size_;
  std::vector<int64_t> result(static_cast<size_t>(batch_size_));
  if (!shuffle_) {
    std::iota(result.begin(), result.end(), first);
    return result;
  }
  const std::lock_guard lock(mutex_);
  Order& order = orders_[epoch % 2];
  if (order.epoch != epoch) order = {epoch, shuffled(dataset_size_, seed_, epoch)};
  std::copy_n(order.permutation.begin() + first, batch_size_, result.begin());
  return result;
}

}  // namespace pipewright
