#include "runtime/sync/bucket_reducer.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "runtime/transport/all_reduce.h"

namespace pipewright {

bool has_spare_core() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return false;
  return CPU_COUNT(&cores) > at::get_num_threads();
}

BucketReducer::BucketReducer(Transport& transport, std::vector<int64_t> ranks, int64_t tag,
                             const GradientBuckets& buckets, bool early)
    : transport_(transport),
      ranks_(std::move(ranks)),
      tag_(tag),
      buckets_(buckets),
      early_(early),
      parameters_(buckets.count(), 0) {
  for (size_t i = 0; i < buckets.gradients().size(); ++i) ++parameters_[buckets.bucket_of(i)];
  missing_ = parameters_;
}

BucketReducer::~BucketReducer() {
  if (!thread_.joinable()) return;
  bool under_way = false;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    under_way = reduced_ < ready_ && !error_;
  }
  changed_.notify_all();
  if (under_way) transport_.abort("this rank stops");
  thread_.join();
}

void BucketReducer::complete(size_t parameter) {
  if (!early_) return;
  --missing_[buckets_.bucket_of(parameter)];
  const size_t before = complete_;
  while (complete_ < buckets_.count() && missing_[complete_] == 0) ++complete_;
  const size_t ready = std::min(complete_, buckets_.count() - 1);
  if (complete_ == before || ready == 0) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  {
    const std::lock_guard lock(mutex_);
    ready_ = ready;
  }
  changed_.notify_all();
}

int64_t BucketReducer::finish() {
  size_t next = 0;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reduced_ == ready_ || error_; });
    if (error_) std::rethrow_exception(error_);
    next = std::exchange(reduced_, 0);
    ready_ = 0;
  }
  for (; next < buckets_.count(); ++next) reduce(next);
  missing_ = parameters_;
  complete_ = 0;
  return std::exchange(sent_bytes_, 0);
}

void BucketReducer::reduce(size_t bucket) {
  sent_bytes_ += all_reduce_sum(transport_, ranks_, tag_, buckets_.flat(bucket));
}

void BucketReducer::run() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return over_ || reduced_ < ready_; });
    if (over_) return;
    const size_t bucket = reduced_;
    lock.unlock();
    std::exception_ptr error;
    try {
      reduce(bucket);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    ++reduced_;
    error_ = error;
    changed_.notify_all();
    if (error) return;
  }
}

}  // namespace pipewright
