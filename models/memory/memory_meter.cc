#include "models/memory/memory_meter.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace pipewright {
namespace {

// Atomic because autograd's thread reads the one of the thread that waits for it.
thread_local std::atomic<MemoryPurpose> current_purpose = MemoryPurpose::kOther;

// Null where it keeps no count.
c10::DeviceAllocator* counting_allocator(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

struct MemoryMeter::Reporter : public c10::MemoryReportingInfoBase {
  struct Block {
    int64_t bytes;
    int64_t tag;
    MemoryPurpose purpose;
  };

  // The one that the thread is attached to.
  static thread_local Reporter* of_thread;

  explicit Reporter(c10::DeviceType device) : device(device) {}

  void reportMemoryUsage(void* pointer, int64_t bytes, size_t allocated, size_t reserved,
                         c10::Device where) override {
    if (Reporter* const further = outer)
      further->reportMemoryUsage(pointer, bytes, allocated, reserved, where);
    if (where.type() != device) return;
    const MemoryPurpose purpose =
        (of_thread == this ? &current_purpose : owner.load())->load(std::memory_order_relaxed);
    const std::lock_guard<std::mutex> lock(mutex);
    if (bytes <= 0) {
      const auto known = blocks.find(pointer);
      if (known == blocks.end()) return;
      add(known->second.purpose, -known->second.bytes);
      blocks.erase(known);
      return;
    }
    const Block block{bytes, tag, purpose};
    // An address that is known already was freed on a thread that nobody watches.
    if (const auto [known, fresh] = blocks.emplace(pointer, block); !fresh) {
      add(known->second.purpose, -known->second.bytes);
      known->second = block;
    }
    add(purpose, bytes);
  }

  void add(MemoryPurpose purpose, int64_t bytes) {
    const auto i = static_cast<size_t>(purpose);
    live += bytes;
    live_for[i] += bytes;
    peak = std::max(peak, live);
    peak_for[i] = std::max(peak_for[i], live_for[i]);
  }

  void count_as(const void* pointer, MemoryPurpose purpose) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto block = blocks.find(const_cast<void*>(pointer));
    if (block == blocks.end() || block->second.purpose == purpose) return;
    add(block->second.purpose, -block->second.bytes);
    block->second.purpose = purpose;
    add(purpose, block->second.bytes);
  }

  /// Itself included.
  bool reports_to(const Reporter* other) const {
    for (const Reporter* one = this; one; one = one->outer)
      if (one == other) return true;
    return false;
  }

  bool memoryProfilingEnabled() const override { return true; }

  const c10::DeviceType device;
  std::atomic<const std::atomic<MemoryPurpose>*> owner =
      &unowned;                            // the purpose of the thread that is metered
  std::atomic<Reporter*> outer = nullptr;  // attached around this one
  static inline const std::atomic<MemoryPurpose> unowned = MemoryPurpose::kOther;
  mutable std::mutex mutex;
  ska::flat_hash_map<void*, Block> blocks;  // no allocation for each of theirs
  int64_t live = 0;
  int64_t peak = 0;
  ByPurpose live_for{};
  ByPurpose peak_for{};
  int64_t tag = 0;
};

thread_local MemoryMeter::Reporter* MemoryMeter::Reporter::of_thread = nullptr;

struct MemoryMeter::Attached::Guard {
  explicit Guard(const std::shared_ptr<Reporter>& reporter)
      : guard(c10::DebugInfoKind::PROFILER_STATE, reporter), reporter(reporter), outer(Reporter::of_thread) {
    Reporter::of_thread = reporter.get();
    reporter->owner = &current_purpose;
    nested = outer && !outer->reports_to(reporter.get());
    if (nested) reporter->outer = outer;
  }
  ~Guard() {
    if (nested) reporter->outer = nullptr;
    reporter->owner = &Reporter::unowned;
    Reporter::of_thread = outer;
  }

  c10::DebugInfoGuard guard;
  std::shared_ptr<Reporter> reporter;
  Reporter* outer;
  bool nested = false;
};

MemoryScope::MemoryScope(MemoryPurpose purpose)
    : outer_(current_purpose.exchange(purpose, std::memory_order_relaxed)) {}
MemoryScope::~MemoryScope() { current_purpose.store(outer_, std::memory_order_relaxed); }

void count_memory_as(const at::Tensor& tensor, MemoryPurpose purpose) {
  MemoryMeter::Reporter* const reporter = MemoryMeter::Reporter::of_thread;
  if (reporter && tensor.defined() && tensor.has_storage())
    reporter->count_as(tensor.storage().data(), purpose);
}

MemoryMeter::MemoryMeter(c10::DeviceType device) : reporter_(std::make_shared<Reporter>(device)) {
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
  reporter_->peak_for = reporter_->live_for;
}

MemoryMeter::ByPurpose MemoryMeter::live_bytes_by_purpose() const {
  const std::lock_guard<std::mutex> lock(reporter_->mutex);
  return reporter_->live_for;
}

MemoryMeter::ByPurpose MemoryMeter::peak_bytes_by_purpose() const {
  const std::lock_guard<std::mutex> lock(reporter_->mutex);
  return reporter_->peak_for;
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

std::optional<MemoryMeter::Block> MemoryMeter::block_at(const void* pointer) const {
  const std::lock_guard<std::mutex> lock(reporter_->mutex);
  const auto block = reporter_->blocks.find(const_cast<void*>(pointer));
  if (block == reporter_->blocks.end()) return std::nullopt;
  return Block{block->second.bytes, block->second.tag};
}

MemoryMeter::Attached::Attached(const MemoryMeter& meter) : guard_(new Guard(meter.reporter_)) {}
MemoryMeter::Attached::~Attached() = default;

std::optional<AllocatorBytes> allocator_bytes(c10::Device device) {
  c10::DeviceAllocator* const allocator = counting_allocator(device);
  if (!allocator) return std::nullopt;
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return AllocatorBytes{stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak,
                        stats.reserved_bytes[kAll].peak};
}

void reset_allocator_peaks(c10::Device device) {
  if (c10::DeviceAllocator* const allocator = counting_allocator(device))
    allocator->resetPeakStats(device.index());
}

}  // namespace pipewright
