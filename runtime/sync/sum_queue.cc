#include "runtime/sync/sum_queue.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "runtime/sync/gradient_exchange.h"

namespace pipewright {

SumQueue::SumQueue(Transport& transport, std::vector<int64_t> ranks, int64_t tag)
    : transport_(transport), ranks_(std::move(ranks)), tag_(tag) {}

SumQueue::~SumQueue() {
  if (!thread_.joinable()) return;
  bool under_way = false;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    to_sum_.clear();
    under_way = under_way_;
  }
  changed_.notify_all();
  if (under_way) transport_.abort("this rank stops");
  thread_.join();
}

void SumQueue::push(std::vector<at::Tensor> tensors) {
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  {
    const std::lock_guard lock(mutex_);
    to_sum_.push_back(std::move(tensors));
  }
  changed_.notify_all();
}

std::vector<at::Tensor> SumQueue::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !sums_.empty() || error_; });
  if (sums_.empty()) std::rethrow_exception(error_);
  std::vector<at::Tensor> sums = std::move(sums_.front());
  sums_.pop_front();
  return sums;
}

int64_t SumQueue::take_sent_bytes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(sent_bytes_, 0);
}

void SumQueue::run() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return over_ || !to_sum_.empty(); });
    if (over_) return;
    std::vector<at::Tensor> tensors = std::move(to_sum_.front());
    to_sum_.pop_front();
    under_way_ = true;
    lock.unlock();
    std::exception_ptr error;
    int64_t sent_bytes = 0;
    try {
      sent_bytes = sum_over_replicas(transport_, ranks_, tag_, tensors);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    under_way_ = false;
    if (error) {
      error_ = error;
    } else {
      sums_.push_back(std::move(tensors));
      sent_bytes_ += sent_bytes;
    }
    changed_.notify_all();
    if (error) return;
  }
}

}  // namespace pipewright
