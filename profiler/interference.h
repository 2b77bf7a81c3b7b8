// Rows for the predictor of slowdowns: how long parts of a model take on a core or a GPU while hogs run there
// too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/profile.h"
#include "interference/data_set.h"
#include "interference/hogs.h"
#include "models/definition/model.h"

namespace pipewright {

struct InterferenceSettings {
  at::Device device = at::kCPU;    ///< a GPU: hogs take it, and times are the device's
  std::vector<std::string> kinds;  ///< of hog_kinds(); on a GPU of gpu_hog_kinds()
  int64_t most_processes = 3;      ///< each kind with 1, 2, ... of them
  int64_t repeats = 8;             ///< windows for each
  double window_seconds = 0.25;
  int64_t segments = 4;              ///< parts of the model, a row of their own for each window
  int64_t core = 0;                  ///< this thread is bound to it
  std::vector<int64_t> other_cores;  ///< where other ranks would be
  uint64_t seed = 1;                 ///< of weights and dropout
  /// Words of a command that burns a core or a GPU so (interference/hogs.h).
  std::function<std::vector<std::string>(const HogOrder& order)> hog_command;
  /// Called once a window with the share that is done and the estimated seconds left.
  std::function<void(double done, double seconds_left)> progress;
};

/// Training passes over the whole model, one after the other, with pauses in some windows, as a rank that
/// waits for others makes them; in each window the mean time of each segment, and what the host says of the
/// core and the GPU. In the second half of the windows of each kind, quiet ones too, each of the other cores
/// is busy, as other ranks keep it: what the host says of all its cores together tells nothing of this one
/// then. Quiet windows first, and one before each further order of hogs, so that a machine that becomes
/// slower on its own shows; a segment's slowdown is against the median of its quiet windows, which are rows
/// too. `profile` is of the model: it says where the segments end and what they are like. `inputs`: a
/// minibatch. Means, not medians: a core is shared in turns, and most nodes are spared.
InterferenceData measure_interference(const Model& model, const std::vector<at::Tensor>& inputs,
                                      const Profile& profile, const InterferenceSettings& settings);

}  // namespace pipewright
