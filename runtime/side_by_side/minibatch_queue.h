// The minibatches of a span, handed out to pipelines side by side as they ask: each to one of them. No thread
// and no socket in here (runtime/groups/group_server.h has them).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/schedule/shape.h"

namespace pipewright {

class MinibatchQueue {
 public:
  /// Parts begin and end at multiples of `interval`, but for the span's ends.
  MinibatchQueue(Span span, int64_t interval);

  struct Part {
    Span minibatches;    ///< none: there are no more for the pipeline
    bool fresh = false;  ///< nobody has asked for it before
  };
  /// Part `number` of what the pipeline gets: the next one of the span, or what it was before. InputError if
  /// it has not asked for the part before.
  Part part(int64_t pipeline, int64_t number);
  /// The first one that has not been handed out.
  int64_t next() const { return next_; }
  /// Nothing from a minibatch on, which has not been handed out.
  void end_before(int64_t minibatch);

  const Span& span() const { return span_; }
  int64_t interval() const { return interval_; }

 private:
  const Span span_;
  const int64_t interval_;
  int64_t next_, end_;
  std::map<int64_t, std::vector<Span>> parts_;  // by pipeline
};

}  // namespace pipewright
