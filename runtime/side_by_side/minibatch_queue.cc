#include "runtime/side_by_side/minibatch_queue.h"

#include <algorithm>
#include <string>

#include "graph/error.h"

namespace pipewright {

MinibatchQueue::MinibatchQueue(Span span, int64_t interval)
    : span_(span), interval_(interval), next_(span.first), end_(span.end()) {
  PW_CHECK(interval > 0, "an interval of " << interval);
}

MinibatchQueue::Part MinibatchQueue::part(int64_t pipeline, int64_t number) {
  std::vector<Span>& parts = parts_[pipeline];
  const auto known = static_cast<int64_t>(parts.size());
  if (number < 0 || number > known) {
    throw InputError("pipeline " + std::to_string(pipeline) + " asks for part " + std::to_string(number) +
                     " of its minibatches and has had " + std::to_string(known));
  }
  if (number < known) return {parts[static_cast<size_t>(number)], false};
  const int64_t end = std::min(end_, (next_ / interval_ + 1) * interval_);
  parts.push_back({next_, std::max<int64_t>(0, end - next_)});
  next_ = parts.back().end();
  return {parts.back(), true};
}

void MinibatchQueue::end_before(int64_t minibatch) {
  PW_CHECK(minibatch >= next_, "minibatch " << next_ - 1 << " has been handed out, and all before "
                                            << minibatch << " were to be the last");
  end_ = std::min(end_, minibatch);
}

}  // namespace pipewright
