// What the rank that computes the losses tells of its minibatches.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "runtime/messages/rank_message.h"

namespace pipewright {

/// Hands a message on for each minibatch, in their order: at once, or, where gradients are clipped, as soon
/// as the norm is known of the update that the minibatch is part of. The time is that of the loss all the
/// same.
class MinibatchReports {
 public:
  /// `part`: which of the parts of each minibatch the losses are of.
  MinibatchReports(bool with_norm, LossPart part, std::function<void(MinibatchLoss)> post)
      : with_norm_(with_norm), part_(part), post_(std::move(post)) {}

  void loss(int64_t minibatch, double loss, double elapsed_seconds, double learning_rate) {
    waiting_.push_back({minibatch, loss, elapsed_seconds, learning_rate});
    if (!with_norm_) flush();
  }
  /// Of the update that all minibatches before `end` which are still waiting are part of.
  void norm(int64_t end, double norm) { post_before(end, norm); }
  /// What still waits goes without.
  void flush() {
    if (!waiting_.empty()) post_before(waiting_.back().minibatch + 1, {});
  }

 private:
  struct Waiting {
    int64_t minibatch;
    double loss, elapsed_seconds, learning_rate;
  };
  void post_before(int64_t end, std::optional<double> norm) {
    while (!waiting_.empty() && waiting_.front().minibatch < end) {
      const Waiting& next = waiting_.front();
      post_({next.minibatch, next.loss, next.elapsed_seconds, {next.learning_rate, norm}, part_});
      waiting_.pop_front();
    }
  }

  bool with_norm_;
  LossPart part_;
  std::function<void(MinibatchLoss)> post_;
  std::deque<Waiting> waiting_;
};

}  // namespace pipewright
