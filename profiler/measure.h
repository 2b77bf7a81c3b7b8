// Measures what one device needs for each node of a model.
//
// Every repeat is a real training pass over the whole model, in which each node is timed where it stands:
// with the caches, the allocator and the values that training gives it. Of a model that does not fit the
// memory it is one over a part of it, and the parts follow each other. docs/profiling.md tells the method and
// its limits.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "graph/run.h"
#include "models/definition/model.h"

namespace pipewright {

/// A part that has been measured; the whole model, if it is one of one.
struct MeasuredPart {
  size_t number = 1, parts = 1;
  std::string first_node, last_node;
  double nodes_seconds = 0;  ///< forward and backward, the sum of its nodes
  double whole_seconds = 0;  ///< likewise, in one piece
};

struct MeasureOptions {
  int64_t batch_size = 0;  ///< samples that the model was built for
  at::Device device = at::kCPU;
  int64_t threads = 1;  ///< LibTorch's threads while measuring; restored afterwards
  int64_t warmup = 1;   ///< passes thrown away; on a device then as many more as profiler/settling.h says
  int64_t repeats = 0;  ///< passes that count; 0: as many as profiler/repeats.h says
  uint64_t seed = 1;    ///< of the weights and dropout
  OptimizerSettings optimizer;  ///< whose update is measured, with a momentum of 0.9
  int64_t beside = 0;  ///< threads that train the same model meanwhile, for ProfiledCrowd; 0: not measured
  /// At most so much of the device's memory for tensors; nothing: most of what is free there. A model that
  /// needs more is measured in parts.
  std::optional<int64_t> memory_bytes;
  std::function<void(const MeasuredPart&)> measured_part;
  /// Called three times a pass with the share done (0..1) and the estimated time left.
  std::function<void(double done, double seconds_left)> progress;
};

/// `inputs`: one minibatch, a tensor per graph.inputs. Times are medians; on a device they are the device's,
/// and the profile has the host's beside them. input_seconds is left 0. RunError when an operator fails (out
/// of memory, ...); InputError that names the node if one alone needs more than the memory there is. Changes
/// no state of the process but LibTorch's random generator and, on a device, the peaks that its allocator
/// counts.
Profile measure(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options);

/// Time of all nodes over the measured time of the whole model, forward and backward: 1 is perfect.
double nodes_over_whole(const Profile& profile);
constexpr double kTolerableDeviation = 0.15;

/// Entry of the provenance: in how many parts the model was measured; none: in one.
constexpr const char* kPartsEntry = "parts";
/// Of the provenance: how many cores' worth of work other programs did while it was measured.
constexpr const char* kOtherCoresEntry = "other_cores";

/// What the entry "clocks" of the provenance says where the device's times did not settle in time.
constexpr const char* kNotSettled = "not settled";

}  // namespace pipewright
