// Counts the bytes of tensors, exactly, through LibTorch's allocator hook; and what the allocator of a device
// counts itself.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace at {
class Tensor;
}

namespace pipewright {

/// What a tensor's memory is for.
enum class MemoryPurpose {
  kOther,        ///< data, buffers of the model, whatever no scope says
  kWeights,      ///< the version that the stage started with, or its place
  kVersions,     ///< further weight versions
  kGradients,    ///< made by a backward: of weights, and on the way there
  kOptimizer,    ///< momentum, moments
  kActivations,  ///< made by a forward: saved for the backward, and on the way there
  kMessages      ///< received, or on their way to another rank
};
constexpr size_t kMemoryPurposes = 7;

/// What this thread allocates has this purpose until the end of the scope; scopes nest.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryPurpose purpose);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryPurpose outer_;
};

/// The tensor's storage counts as this from now on, for the meter that is attached to this thread, if one is.
void count_memory_as(const at::Tensor& tensor, MemoryPurpose purpose);

/// Counts what is allocated on the threads it is attached to (and what autograd does on their behalf, with
/// the purpose of the thread that waits for it), from the moment of attaching; frees are counted on those
/// threads too. Allocations made before, or on other threads, are not seen.
///
///   MemoryMeter meter;
///   MemoryMeter::Attached attached(meter);   // this thread, until the end of the scope
///   ...
///   meter.peak_bytes();
///
/// Scopes nest: what happens within an inner one counts for the outer meter too. Uses the thread's profiler
/// slot of LibTorch: not together with its own profiler. Methods may be called from any thread.
class MemoryMeter {
 public:
  /// Of the memory of this kind of device.
  explicit MemoryMeter(c10::DeviceType device = c10::DeviceType::CPU);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t live_bytes() const;
  int64_t peak_bytes() const;  ///< the most live_bytes() since the start or the last reset_peak()
  void reset_peak();           ///< peak_bytes() becomes live_bytes()

  using ByPurpose = std::array<int64_t, kMemoryPurposes>;
  ByPurpose live_bytes_by_purpose() const;
  /// Of each purpose the most there was at a time; their sum may exceed peak_bytes().
  ByPurpose peak_bytes_by_purpose() const;

  /// Allocations from now on carry this tag (0 at first), until they are freed.
  void set_tag(int64_t tag);
  /// Live bytes of each tag that has any.
  std::map<int64_t, int64_t> live_bytes_by_tag() const;
  struct Block {
    int64_t bytes;  ///< as the allocator counts
    int64_t tag;
  };
  /// The live allocation that begins there, if this meter has seen it.
  std::optional<Block> block_at(const void* pointer) const;

  class Attached {
   public:
    explicit Attached(const MemoryMeter& meter);
    ~Attached();
    Attached(const Attached&) = delete;
    Attached& operator=(const Attached&) = delete;

   private:
    struct Guard;
    std::unique_ptr<Guard> guard_;
  };

 private:
  struct Reporter;
  friend void count_memory_as(const at::Tensor& tensor, MemoryPurpose purpose);
  std::shared_ptr<Reporter> reporter_;
};

/// What LibTorch's caching allocator of a device says of itself: rounding, workspaces of libraries and memory
/// of all threads included.
struct AllocatorBytes {
  int64_t allocated = 0;       ///< given out now
  int64_t peak_allocated = 0;  ///< the most given out since the start or reset_allocator_peaks()
  int64_t peak_reserved = 0;   ///< likewise, the most taken from the device
};
/// Nothing for the CPU, for a device whose allocator keeps no such count, and before its first use.
std::optional<AllocatorBytes> allocator_bytes(c10::Device device);
void reset_allocator_peaks(c10::Device device);

}  // namespace pipewright
