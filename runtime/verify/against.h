// A run beside another program's training of the same: equal, equal up to rounding, or where they part.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/verify/other_training.h"
#include "runtime/verify/retraining.h"
#include "runtime/verify/up_to_rounding.h"

namespace pipewright {

struct AgainstOther {
  struct Weights {
    std::string file;
    int64_t minibatches = 0;  ///< trained
    /// Trainable parameters, and behind them the floating-point buffers of stages of one replica that the
    /// file has: replicas see other samples than one device does.
    UpToRounding tensors;
  };
  std::string from;
  LossesUpToRounding losses;  ///< of none where the other says none
  std::vector<Weights> weights;

  bool equal() const;  ///< bit for bit
  bool holds() const;
  /// All is equal, or rounding alone does not take all of the weights, of losses alone the losses, too far.
  bool says_something() const;
};

/// `written`: what the ranks wrote of `minibatches`, `serial`: its serial reference, from which the growth of
/// rounding is measured; its weights stand for the run's where that has no checkpoint of a minibatch that the
/// other has weights of.
AgainstOther compare_with_other(const Job& job, const Retraining& retraining,
                                const std::filesystem::path& run_folder, const OtherTraining& other,
                                Span minibatches, const TrainedModel& written, const TrainedModel& serial,
                                double tolerance);

}  // namespace pipewright
