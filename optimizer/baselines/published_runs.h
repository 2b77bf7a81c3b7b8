// Runs that others measured and published, priced by our simulator: how far is it from what they took?
//
// A transfer occupies both of its ends (SimulationOptions::blocking_transfers), and one constant is fitted to
// runs of the same model and cluster: how many times as long as the publisher's own links say a transfer
// takes in a run (packing, waiting for the other end, what else goes over the link). No run confirms itself:
// each is predicted with the constant of the others.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/schedule/simulate.h"

namespace pipewright {

struct PublishedRun {
  std::string name;
  std::string group;    ///< a model on a cluster: such runs have a constant in common
  PipelineShape shape;  ///< 1F1B that drains; `microbatches` is what one update takes, on all replicas
  /// Replica q of every stage makes a pipeline, of which those that differ are here: its stages' times,
  /// messages as the publisher's links say. Every pipeline waits for the slowest before the update.
  std::vector<std::vector<StageTimes>> pipelines;
  double measured_seconds = 0;  ///< of an update
  std::string unusable;         ///< why nothing can be learnt from it; "" for a usable run
  bool pipelined() const { return shape.stages() > 1; }
};

/// Seconds of an update, simulated; transfers between stages take `transfer_factor` times as long.
double predicted_seconds(const PublishedRun& run, double transfer_factor);

/// The factor with which the prediction is what was measured: 0 where that needs no transfers at all, nothing
/// where no factor is enough. The run has several stages.
std::optional<double> exact_transfer_factor(const PublishedRun& run);

struct PublishedPrediction {
  double plain_seconds = 0;    ///< with factor 1
  double left_out_factor = 1;  ///< fitted to the other runs of the group; 1 where there are none to fit it to
  double left_out_seconds = 0;  ///< with that one
};

/// By run, in their order; zeros for what is not usable. Of the factors that are exact for one of the other
/// pipelined runs of the group, the one with the least mean error over all of them is taken.
std::vector<PublishedPrediction> leave_one_out(const std::vector<PublishedRun>& runs);

/// Predicted over measured, less 1.
double error_of(const PublishedRun& run, double seconds);

enum class PublishedPart { kPipelined, kOneStage, kAll };

/// Means over usable runs of |error_of()|.
struct PublishedError {
  std::string group;
  PublishedPart part = PublishedPart::kAll;
  int64_t runs = 0;  ///< at least 1
  double plain = 0, left_out = 0;
  double worst = 0;  ///< left out, with its sign
};
/// By group, in the order in which they come first, and part.
std::vector<PublishedError> errors_by_group(const std::vector<PublishedRun>& runs,
                                            const std::vector<PublishedPrediction>& predictions);

}  // namespace pipewright
