// Counts the bytes of tensors, exactly, through LibTorch's allocator hook.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace pipewright {

/// Counts what is allocated on the threads it is attached to (and what autograd does on their behalf), from
/// the moment of attaching; frees are counted on those threads too. Allocations made before, or on other
/// threads, are not seen.
///
///   MemoryMeter meter;
///   MemoryMeter::Attached attached(meter);   // this thread, until the end of the scope
///   ...
///   meter.peak_bytes();
///
/// Uses the thread's profiler slot of LibTorch: not together with its own profiler. Methods may be called
/// from any thread.
class MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t live_bytes() const;
  int64_t peak_bytes() const;  ///< the most live_bytes() since the start or the last reset_peak()
  void reset_peak();           ///< peak_bytes() becomes live_bytes()

  /// Allocations from now on carry this tag (0 at first), until they are freed.
  void set_tag(int64_t tag);
  /// Live bytes of each tag that has any.
  std::map<int64_t, int64_t> live_bytes_by_tag() const;

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
  std::shared_ptr<Reporter> reporter_;
};

}  // namespace pipewright
