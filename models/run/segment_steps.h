// What a Segment does, prepared once: which operator each node calls, its literals, and where its tensors
// come from and go to.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/run/arguments.h"
#include "models/run/operator_guards.h"

namespace pipewright {

/// Where a tensor argument comes from at run time.
struct StepInput {
  /// kCopied: a parameter of which the operator reads the bfloat16 copy, if there is one.
  enum class Kind : uint8_t { kValue, kParameter, kCopied, kBuffer, kNone } kind = Kind::kNone;
  bool last = false;  ///< of a value: nobody reads it afterwards, it may be moved out
  uint32_t index = 0;
};

/// A place of an operator's stack, and what it is filled with at each call.
struct StackFill {
  TensorPlace::Kind kind = TensorPlace::Kind::kTensor;
  size_t position = 0;
  c10::SmallVector<StepInput, 2> sources;  ///< mostly one: read at each call, and so not behind a pointer
};

/// The slot of an output that nobody reads.
constexpr uint32_t kDropped = UINT32_MAX;

/// The call of one node.
struct SegmentStep {
  c10::OperatorHandle op;
  OperatorGuard guard = nullptr;
  std::vector<c10::IValue> stack = {};  ///< literals; the rest is filled in
  std::vector<StackFill> fills = {};
  std::vector<uint32_t> results = {};  ///< slot of each output, or kDropped
  bool random = false;
  uint64_t name_hash = 0;
  bool gradient = true;
  bool without_autocast = false;
  std::optional<at::ScalarType> autocast = {};  ///< the node's own
  bool constant = false;                        ///< depends on nothing: runs in the first forward only
  /// Of a step that keeps buffers as they are: what it writes.
  struct Write {
    size_t position;              ///< of the stack
    std::vector<size_t> results;  ///< outputs that are this tensor again
  };
  std::vector<Write> writes = {};
  bool makes_only_what_it_writes = false;  ///< no result is another tensor than those
  bool changes_shapes = false;             ///< it writes no memory: unsqueeze_, transpose_
  std::string label = {};                  ///< for messages: node 'conv1' (features.0, aten::conv2d)
};

/// Names as in Segment. Values lie in slots while the segment runs; the first inputs.size() are the inputs.
struct SegmentSteps {
  std::vector<size_t> nodes;
  std::vector<std::string> inputs, parameters, buffers, outputs;
  std::vector<SegmentStep> steps;  ///< by `nodes`
  std::vector<size_t> random;      ///< positions of the steps that draw
  std::vector<size_t> copied;      ///< positions in `parameters` that a step reads as kCopied, ascending
  size_t value_count = 0;          ///< slots
  std::vector<uint32_t> output_slots;
  std::vector<uint32_t> constant_slots;  ///< made by constant steps, read by others or handed out
  size_t deepest_stack = 0;
  bool autocast = false;
  at::Device device = at::kCPU;
};

/// With the arguments and errors of Segment's constructor.
SegmentSteps prepare_steps(const Graph& graph, const std::vector<size_t>& nodes,
                           std::vector<std::string> outputs, at::Device device, size_t keeping_buffers);

}  // namespace pipewright
