// One forward of a Segment: its steps, called one after the other.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "models/run/interpreter.h"
#include "models/run/segment_steps.h"

namespace pipewright {

/// The seed of the numbers that a step draws in a pass.
uint64_t seed_of(const SegmentStep& step, RandomKey key);

class SegmentRun {
 public:
  /// With the arguments of Segment::forward(); all but `inputs` outlive the object. `constants`: what an
  /// earlier run has left in constant_slots; empty: this is the first.
  SegmentRun(const SegmentSteps& steps, std::vector<at::Tensor> inputs,
             const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers, RandomKey key,
             const NodeObserver* observer, const std::vector<at::Tensor>& copies,
             const std::vector<at::Tensor>& constants);

  void run();
  /// After it: what lies in these slots.
  std::vector<at::Tensor> values_in(const std::vector<uint32_t>& slots) const;

 private:
  void run_step(size_t i);
  /// Of a constant step, which is not run again: the observer meets what it has made.
  void show_constant(size_t i) const;
  void fill_stack(const SegmentStep& step);
  at::Tensor take(const StepInput& source);
  /// Before a step that keeps buffers. Where it would write one: true if there is nothing left to do, and its
  /// results are on the stack; else it is given copies, and what it writes there is thrown away.
  bool keep_buffers(const SegmentStep& step);
  bool is_of_buffer(const at::Tensor& tensor) const;
  void call(const SegmentStep& step);
  void call_random(const SegmentStep& step);
  void keep_results(size_t i);

  const SegmentSteps& steps_;
  const std::vector<at::Tensor>& parameters_;
  const std::vector<at::Tensor>& buffers_;
  const RandomKey key_;
  const NodeObserver* const observer_;
  const std::vector<at::Tensor>& copies_;
  const bool folded_;  // the constants are there
  std::vector<at::Tensor> values_;
  c10::Stack stack_;
  size_t next_random_ = 0;  // in SegmentSteps::random
};

}  // namespace pipewright
