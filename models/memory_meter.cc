#include "models/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace pipewright {

struct MemoryMeter::Reporter : public c10::MemoryReportingInfoBase {
  struct Block {
    int64_t bytes;
    int64_t tag;
  };

  void reportMemoryUsage(void* pointer, int64_t bytes, size_t, size_t, c10::Device) override {
    const std::lock_guard<std::mutex> lock(mutex);
    // An address that is known already was freed on a thread that nobody watches.
    if (const auto known = blocks.find(pointer); known != blocks.end()) {
      live -= known->second.bytes;
      blocks.erase(known);
    }
    if (bytes <= 0) return;
    blocks.emplace(pointer, Block{bytes, tag});
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  mutable std::mutex mutex;
  std::unordered_map<void*, Block> blocks;
  int64_t live = 0;
  int64_t peak = 0;
  int64_t tag = 0;
};

struct MemoryMeter::Attached::Guard {
  c10::DebugInfoGuard guard;
};

MemoryMeter::MemoryMeter() : reporter_(std::make_shared<Reporter>()) {
  // Otherwise LibTorch complains about blocks that are freed on a metered thread and were allocated before,
  // or elsewhere: for us an ordinary case. A level that the user has set (TORCH_CPP_LOG_LEVEL) stays.
  static std::once_flag once;
  std::call_once(once, [] {
    if (FLAGS_caffe2_log_level == c10::GLOG_WARNING) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  });
}
MemoryMeter::~MemoryMeter() = default;

int64_t MemoryMeter::live_bytes() const {
  const std::lock_guard<std::mutex> lock(reporter_->mutex);
  return reporter_->live;
}

int64_t MemoryMeter::peak_bytes() const {
  const std::lock_guard<std::mutex> lock(reporter_->mutex);
  return reporter_->peak;
}

void MemoryMeter::reset_peak() {
  const std::lock_guard<std::mutex> lock(reporter_->mutex);
  reporter_->peak = reporter_->live;
}

void MemoryMeter::set_tag(int64_t tag) {
  const std::lock_guard<std::mutex> lock(reporter_->mutex);
  reporter_->tag = tag;
}

std::map<int64_t, int64_t> MemoryMeter::live_bytes_by_tag() const {
  const std::lock_guard<std::mutex> lock(reporter_->mutex);
  std::map<int64_t, int64_t> bytes;
  for (const auto& [pointer, block] : reporter_->blocks) bytes[block.tag] += block.bytes;
  return bytes;
}

MemoryMeter::Attached::Attached(const MemoryMeter& meter)
    : guard_(new Guard{c10::DebugInfoGuard(c10::DebugInfoKind::PROFILER_STATE, meter.reporter_)}) {}
MemoryMeter::Attached::~Attached() = default;

}  // namespace pipewright
