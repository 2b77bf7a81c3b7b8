// Measures what one device needs for each node of a model.
//
// Every repeat is a real training pass over the whole model, in which each node is timed where it stands:
// with the caches, the allocator and the values that training gives it. docs/profiling.md tells the method
// and its limits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/profile.h"
#include "models/model.h"

namespace pipewright {

struct MeasureOptions {
  int64_t batch_size = 0;  ///< samples that the model was built for
  int64_t threads = 1;     ///< LibTorch's threads while measuring; restored afterwards
  int64_t warmup = 1;      ///< passes thrown away
  int64_t repeats = 0;     ///< passes that count; 0: as many as fit 10 s, at least 3, at most 50
  uint64_t seed = 1;       ///< of the weights and dropout
  /// Called three times a pass with the share done (0..1) and the estimated time left.
  std::function<void(double done, double seconds_left)> progress;
};

/// `inputs`: one minibatch, a tensor per graph.inputs. Times are medians. input_seconds is left 0. RunError
/// when an operator fails (out of memory, ...). Changes no state of the process but LibTorch's random
/// generator.
Profile measure(const Model& model, const std::vector<at::Tensor>& inputs, const MeasureOptions& options);

/// Time of all nodes over the measured time of the whole model, forward and backward: 1 is perfect.
double nodes_over_whole(const Profile& profile);
constexpr double kTolerableDeviation = 0.15;

double median(std::vector<double> values);
/// Median absolute deviation over the median; 0 if the median is 0.
double relative_spread(const std::vector<double>& values);

}  // namespace pipewright
