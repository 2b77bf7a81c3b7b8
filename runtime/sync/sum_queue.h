// Sums over the replicas of a stage that are made beside training.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/transport/transport.h"

namespace pipewright {

/// One sum after the other, on a thread of its own, in the order in which they are pushed: the same on all
/// replicas. The order within a sum is that of all_reduce_sum(). push() and take() are one thread's.
class SumQueue {
 public:
  /// `ranks`: of the replicas, in their order; `tag` as in all_reduce_sum(). Borrows the transport.
  SumQueue(Transport& transport, std::vector<int64_t> ranks, int64_t tag);
  /// With a sum under way (its rank fails), aborts the transport, which ends it.
  ~SumQueue();
  SumQueue(const SumQueue&) = delete;
  SumQueue& operator=(const SumQueue&) = delete;

  /// Of the host's memory, nobody else's from now on.
  void push(std::vector<at::Tensor> tensors);
  /// Waits for the sums of what was pushed first and has not been taken. PeerError if they failed.
  std::vector<at::Tensor> take();
  /// By this rank, since the last call, for what was taken.
  int64_t take_sent_bytes();

 private:
  void run();

  Transport& transport_;
  const std::vector<int64_t> ranks_;
  const int64_t tag_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<at::Tensor>> to_sum_, sums_;
  bool under_way_ = false, over_ = false;
  int64_t sent_bytes_ = 0;
  std::exception_ptr error_;
  std::thread thread_;  // begins with the first sum
};

}  // namespace pipewright
