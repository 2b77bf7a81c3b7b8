// Sums the gradients of a stage over its replicas while the backward that makes them still runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/stage/gradient_buckets.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// All replicas go through the buckets in the same order, round after round, whatever order their gradients
/// come in: so no two of them wait for each other. A thread of its own takes every bucket but the last, which
/// is never complete before the backward has ended; the thread starts with the first bucket that has one
/// behind it. The sums have the order of all_reduce_sum(). Whether a rank sums early changes no bit and may
/// differ between the replicas.
class BucketReducer {
 public:
  /// `ranks`: of the replicas, in their order; `tag` as in all_reduce_sum(). Without `early` all buckets are
  /// left to finish(). Borrows transport and buckets.
  BucketReducer(Transport& transport, std::vector<int64_t> ranks, int64_t tag, const GradientBuckets& buckets,
                bool early);
  /// With a round under way (its rank fails), aborts the transport, which ends the round.
  ~BucketReducer();

  /// This replica's gradient of the parameter is all there is of it in this round; from now on it is not
  /// touched until finish() has returned.
  void complete(size_t parameter);
  /// All gradients are complete: waits until the buckets hold the sums. The next round can begin. Returns the
  /// bytes this rank sent in the round. PeerError from here on if a sum failed.
  int64_t finish();

 private:
  void run();
  void reduce(size_t bucket);

  Transport& transport_;
  std::vector<int64_t> ranks_;
  int64_t tag_;
  const GradientBuckets& buckets_;
  bool early_;
  std::vector<size_t> parameters_;  // by bucket: how many it has
  std::vector<size_t> missing_;     // by bucket: how many are not complete yet
  size_t complete_ = 0;             // so many buckets are complete, and so are those before them

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t ready_ = 0;    // the thread may reduce buckets up to here
  size_t reduced_ = 0;  // and has reduced so many
  int64_t sent_bytes_ = 0;
  bool over_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

/// Whether this thread may use more cores than LibTorch computes on. On the core that computes, summing early
/// only gets in the way: what the wait loses, the backward pays (benchmarks/RESULTS.md).
bool has_spare_core();

}  // namespace pipewright
