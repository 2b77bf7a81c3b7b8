// Minibatches of a stage behind frozen layers: one is looked up while the one before it is trained.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "runtime/worker/cached_prefix.h"

namespace pipewright {

class PrefixFeed {
 public:
  /// `minibatches`: those of the stage in one span, in the order of its forwards; nothing at the end. Called
  /// from other threads, one at a time. Borrows the prefix. The destructor waits for the look-up under way.
  PrefixFeed(CachedPrefix& prefix, std::function<std::optional<int64_t>()> minibatches);

  /// Waits until the next minibatch, which is k, has been looked up; throws what that threw.
  void await(int64_t k);
  /// Behind await(): CachedPrefix::fields(), and the next look-up begins.
  std::vector<at::Tensor> fields(int64_t k);

 private:
  void begin();

  struct Ahead {
    int64_t minibatch = 0;
    CachedPrefix::Found found;
  };
  CachedPrefix& prefix_;
  const std::function<std::optional<int64_t>()> minibatches_;
  CachedPrefix::Found found_;
  std::future<std::optional<Ahead>> next_;  // last: its thread uses the others
};

}  // namespace pipewright
