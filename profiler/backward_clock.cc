#include "profiler/backward_clock.h"

#include <utility>

namespace pipewright {

BackwardClock::BackwardClock(std::vector<SequenceRange> nodes, Marks& marks)
    : nodes_(nodes.size()),
      marks_(marks),
      watch_(
          std::move(nodes), [this] { started(); }, [this](std::optional<size_t> node) { ended(node); }) {}

void BackwardClock::started() {
  if (!last_) last_ = marks_.set();
}

void BackwardClock::ended(std::optional<size_t> node) {
  const size_t mark = marks_.set();
  if (node) charges_.push_back({*node, last_.value(), mark});
  last_ = mark;
}

std::vector<Stretch> BackwardClock::stretches() const {
  std::vector<Stretch> stretches(nodes_);
  for (const Charge& charge : charges_) stretches[charge.node] += marks_.between(charge.from, charge.to);
  return stretches;
}

}  // namespace pipewright
