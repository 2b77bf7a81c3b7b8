// Measures what one device needs for each node of a model.
//
// Every repeat is a real training pass over the whole model, in which each node is timed where it stands:
// with the caches, the allocator and the values that training gives it. docs/profiling.md tells the method
// and its limits.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/profile.h"
#include "models/definition/model.h"

namespace pipewright {

struct MeasureOptions {
  int64_t batch_size = 0;  ///< samples that the model was built for
  at::Device device = at::kCPU;
  int64_t threads = 1;  ///< LibTorch's threads while measuring; restored afterwards
  int64_t warmup = 1;   ///< passes thrown away; on a device then as many more as profiler/settling.h says
  int64_t repeats = 0;  ///< passes that count; 0: as many as profiler/repeats.h says
  uint64_t seed = 1;    ///< of the weights and dropout
  int64_t beside = 0;   ///< threads that train the same model meanwhile, for ProfiledCrowd; 0: not measured
  /// Called three times a pass with the share done (0..1) and the estimated time left.
  std::function<void(double done, double seconds_left)> progress;
};

/// `inputs`: one minibatch, a tensor per graph.inputs. Times are medians; on a device they are the device's,
/// and the profile has the host's beside them. input_seconds is left 0. RunError when an operator fails (out
/// of memory, ...). Changes no state of the process but LibTorch's random generator and, on a device, the
/// peaks that its allocator counts.
Profile measure(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options);

/// Time of all nodes over the measured time of the whole model, forward and backward: 1 is perfect.
double nodes_over_whole(const Profile& profile);
constexpr double kTolerableDeviation = 0.15;

/// What the entry "clocks" of the provenance says where the device's times did not settle in time.
constexpr const char* kNotSettled = "not settled";

}  // namespace pipewright
