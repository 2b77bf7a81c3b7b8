// LibTorch's threads while something is measured.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

namespace pipewright {

/// OpenMP's and MKL's; as many as before when it ends.
class ThreadCount {
 public:
  explicit ThreadCount(int64_t threads) : before_(at::get_num_threads()) {
    at::set_num_threads(static_cast<int>(threads));
  }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

}  // namespace pipewright
