#include "runtime/worker/prefix_feed.h"

#include <utility>

#include "graph/error.h"

namespace pipewright {

PrefixFeed::PrefixFeed(CachedPrefix& prefix, std::function<std::optional<int64_t>()> minibatches)
    : prefix_(prefix), minibatches_(std::move(minibatches)) {
  begin();
}

void PrefixFeed::begin() {
  next_ = std::async(std::launch::async, [this]() -> std::optional<Ahead> {
    const auto k = minibatches_();
    if (!k) return std::nullopt;
    return Ahead{*k, prefix_.look_up(*k)};
  });
}

void PrefixFeed::await(int64_t k) {
  auto ahead = next_.get();
  PW_CHECK(ahead && ahead->minibatch == k, "minibatch " << k << " is not the stage's next one");
  found_ = std::move(ahead->found);
}

std::vector<at::Tensor> PrefixFeed::fields(int64_t k) {
  auto fields = prefix_.fields(k, std::exchange(found_, {}));
  begin();
  return fields;
}

}  // namespace pipewright
