// The cores that a thread may run on, for a while.
#pragma once

#include <sched.h>

#include <cstdint>
#include <optional>

namespace pipewright {

/// The calling thread may run on this core alone, or on every one, until the object ends; threads and
/// processes that it starts meanwhile, too. Where the kernel refuses, all stays as it was.
class CoreAffinity {
 public:
  explicit CoreAffinity(std::optional<int64_t> only) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int64_t core = 0; core < CPU_SETSIZE; ++core)
      if (!only || core == *only)
        CPU_SET(static_cast<size_t>(core), &cores);  // the kernel takes those there are
    sched_setaffinity(0, sizeof cores, &cores);
  }
  ~CoreAffinity() { sched_setaffinity(0, sizeof before_, &before_); }
  CoreAffinity(const CoreAffinity&) = delete;
  CoreAffinity& operator=(const CoreAffinity&) = delete;

 private:
  cpu_set_t before_;
};

}  // namespace pipewright
